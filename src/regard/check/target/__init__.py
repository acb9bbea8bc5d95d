"""How to call what was handed over: any function, class, module or object."""

from regard.check.target.errors import AlwaysFails, Failed, NotCallable
from regard.check.target.invocation import Invocation, Stream, invocations

__all__ = ["AlwaysFails", "Failed", "Invocation", "NotCallable", "Stream", "invocations"]
