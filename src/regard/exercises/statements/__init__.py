"""What each exercise asks for, in texts: statement, shapes, formula, stub, numbers, hints.

`vectors` has 01 to 03, `attention` 04 to 09, `positions` 10 and 11, `masks` 12 and 13, `heads` 14 to 17, and `models`
18 to 20. `course` has the lines of code that make the course's numbers.
"""
