from utracefsd.events._tracepoint import Tracepoint

class IndexTable:
    """The write_index table of one data connection (one open file of user_events_data)."""

    total_refused: int
    @property
    def refused(self) -> dict[tuple[int, int], int]:
        """(errno, write_index) -> count of bare records refused since take_refused(); index -1 for records without one.

        At most 256 keys: what comes beyond is counted under (errno, -1).
        """

    def take_refused(self) -> dict[tuple[int, int], int]:
        """Hand over `refused` and start anew."""

    def append(self, tracepoint: Tracepoint) -> int:
        """The new write_index."""

    def __len__(self) -> int: ...
    def __getitem__(self, write_index: int) -> Tracepoint: ...
    def clear(self) -> None:
        """Drop all tracepoints (the connection closed)."""

    def write(self, record: bytes, pid: int) -> int:
        """The acknowledged form: bytes taken, or -errno: EFAULT < 4 bytes, EINVAL negative, ENOENT unknown, then Tracepoint.write."""

    def take_in(self, buffer: bytes | bytearray | memoryview, offset: int, pid: int) -> int:
        """Take the consecutive complete bare `bin` objects at `offset`; returns the offset of the first byte not consumed.

        Stops at anything else, at an incomplete object and at one of more than MAX_DATA_OBJECT bytes (the caller says EMSGSIZE).
        ValueError: offset outside the buffer.
        """
