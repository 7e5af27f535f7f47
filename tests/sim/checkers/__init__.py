"""One checker per invariant. A checker looks on, and raises `Violation` at the step that breaks its invariant."""

from .violation import Violation

__all__ = ["Violation"]
