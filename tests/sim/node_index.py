"""The index of one simulated node over all of its lives, and the one that it receives as a snapshot."""

from contextlib import suppress

from store.index.index import Index

from .index_files import IndexFiles


class NodeIndex:
    """A `store.snapshots.install.IndexPlaces` for one node. Adopting is one step; real directories are for unit
    tests.
    """

    def __init__(self, files: IndexFiles, node_id: int) -> None:
        self._files, self._node_id = files, node_id
        self._life = self._images = 0
        self._opened: Index | None = None
        self._receiving: Index | None = None

    def begin_life(self) -> None:
        self._life += 1

    def open(self) -> Index:
        self._opened = self._files.open(self._name())
        return self._opened

    def end_life(self, *, keep: bool) -> None:
        """End the process. The next life finds the flushed data, unless the disk is replaced."""
        self.close()
        name = self._name()
        if self._files.exists(name):
            self._files.remove(name)
        if not keep:
            self.forget()

    def leave_flushed(self) -> None:
        """Copy the flushed data while the index is still open."""
        if self._files.exists(self._name()):
            self._files.copy(self._name(), self._name(1))

    def forget(self) -> None:
        """Remove the index because the disk is replaced while the node is down."""
        for name in (self._name(1), self._incoming):
            if self._files.exists(name):
                self._files.remove(name)

    def take_image(self) -> str:
        """Copy the flushed data while the node runs, and return the name of the copy."""
        self._images += 1
        name = f"node {self._node_id} image {self._images}"
        self._files.copy(self._name(), name)
        return name

    def put_back(self, image: str) -> None:
        """Let the next life, which has not begun, find the copy."""
        for name in (self._name(1), self._incoming):
            if self._files.exists(name):
                self._files.remove(name)
        self._files.move(image, self._name(1))

    def close(self) -> None:
        if self._receiving is not None:
            with suppress(Exception):  # the node may have closed it itself
                self._receiving.close()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._receiving = None

    # --- the index that is received ----------------------------------------------------------------------------

    def open_incoming(self) -> Index:
        self.remove_incoming()
        self._receiving = self._files.open(self._incoming)
        return self._receiving

    def discard_incoming(self, incoming: Index) -> None:
        incoming.close()
        self.remove_incoming()

    def remove_incoming(self) -> None:
        if self._files.exists(self._incoming):
            self._files.remove(self._incoming)

    def adopt_incoming(self) -> None:
        if self._files.exists(self._incoming):
            if self._files.exists(self._name()):
                self._files.remove(self._name())
            self._files.move(self._incoming, self._name())

    @property
    def _incoming(self) -> str:
        return f"node {self._node_id} incoming"

    def _name(self, later: int = 0) -> str:
        return f"node {self._node_id} life {self._life + later}"
