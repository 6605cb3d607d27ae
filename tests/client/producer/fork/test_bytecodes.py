"""A signal handler of Python forks between any two bytecodes of a program that emits."""

from __future__ import annotations

from tests.client.daemons.real_daemon import Work
from tests.client.producer.fork.test_many_children import counts

PROGRAM = """
import atexit
emitted = 0
def count(who, number):
    global emitted
    event.emit(who, number)
    emitted += 1

def handler(*_):
    global child, emitted
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    emitted = 0
    count(place, 100)
signal.signal(signal.SIGUSR1, handler)

def work():
    with contextlib.suppress(ValueError):
        event.emit(place, 0)
        [event.emit(place, 1 + i) for i in range(2)]
        raise ValueError
    event.emit(place, 3)

def trace(frame, what, _):
    global left
    frame.f_trace_opcodes = True
    if what == "opcode":
        left -= 1
        if not left:
            signal.raise_signal(signal.SIGUSR1)
    return trace

sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it at the next settrace
place, left, child = 0, 1, None
while left <= 0 or not place:
    place += 1
    left, child = place, None
    sys.settrace(trace)
    work()
    sys.settrace(None)
    if child == 0:
        count(place, 101)
        atexit.register(event.emit, place, 102)
        sys.exit()
print(place)
"""


def test_a_handler_forks_at_each_bytecode(work: Work) -> None:
    """Its child emits, comes back from the handler, emits the rest and exits, by atexit."""
    places = int(work.run(PROGRAM, before="import contextlib\n"))
    assert places > 30
    found = work.numbers()
    begun = 0
    for place in range(1, places + 1):
        numbers = sorted(found[place])
        childrens = numbers.count(100)
        rest = [number for number in range(4) if numbers.count(number) == 2]
        assert rest == list(range(4))[4 - len(rest) :], "the last ones"
        assert numbers == sorted([0, 1, 2, 3, *rest, *[100, 101, 102] * childrens])
        begun += len(numbers)
    assert sum(found[place].count(100) for place in found) == places - 1
    assert counts(work, begun) == (begun, 0)
