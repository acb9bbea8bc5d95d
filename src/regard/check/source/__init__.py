"""The files of somebody's code.

`importer` finds the object that is named, in a file, in a module of its package (`packages`) or in a `notebook`;
`candidates` lists what a file has to be checked, from its text.
`expressions` reads arguments that are written with a file's own names.
"""
