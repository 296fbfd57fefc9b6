"""One interpreter session, driven by the host over a socket.

Everything that runs here is an agent's code: the host trusts nothing that it reads from a session. Asynchronous code runs
on an event loop whose only wake-ups are the host's answers. `lockdown.py` stands before this in the same program, and
`forkserver.py`, which makes the processes that sessions run in, after it.
"""

import sys

sys.modules["ssl"] = None  # asyncio does without it, and it is slow to load
import asyncio

del sys.modules["ssl"]
import ast
import contextlib
import heapq
import inspect
import io
import json
import linecache
import os
import re
import types
from collections import deque
from collections.abc import Coroutine

MAX_NODES = 100_000
MAX_TEXT = 4 << 20
MAX_DEPTH = 110
MAX_REPR = 10_000
MAX_ERROR = 4 << 20
EARLIER = "an awaited call belongs to an earlier cell: await a call in the cell that makes it"
STALLED = "the cell waits for something that can no longer happen: no call is pending and no timer runs"

# ---------------------------------------------------------------------------------------------------------- messages

dumps = json.JSONEncoder(separators=(",", ":")).encode
loads = json.JSONDecoder().decode


class Channel:
    def __init__(self, fd):
        self.fd = fd
        self.reader = open(fd, "rb", closefd=False)

    def next(self):
        """The host's next message; None if there is no host any more."""
        head = self.reader.read(4)
        body = self.reader.read(int.from_bytes(head, "little")) if len(head) == 4 else b""
        return loads(body.decode()) if body else None

    def read(self):
        message = self.next()
        if message is None:
            os._exit(0)
        return message

    def write(self, kind, text):
        self.send(kind, text.encode("utf-8", "backslashreplace"))

    def send(self, kind, body):
        data = memoryview(kind + len(body).to_bytes(4, "little") + body)
        while data:
            data = data[os.write(self.fd, data):]


# ------------------------------------------------------------------------------------------------------------ values


class TooLarge(Exception):
    pass


addresses = {}


def stable(text):
    """Numbers memory addresses in the order in which they are first shown: they differ from process to process."""
    if " at 0x" not in text:
        return text
    number = lambda found: f" at 0x{addresses.setdefault(found[1], len(addresses) + 1):012x}"
    return re.sub(r" at 0x([0-9a-f]{6,16})\b", number, text)


def plain(text):
    """The text without surrogates, which no JSON reader takes."""
    try:
        text.encode()
        return str.__str__(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


class Packer:
    """Turns arguments into tagged JSON. A value may be shared a million times, so there is a budget."""

    def __init__(self):
        self.nodes = MAX_NODES
        self.text = MAX_TEXT

    def pack(self, value, depth=3):
        if depth > MAX_DEPTH:
            raise TooLarge("nested too deeply")
        self.nodes -= 1
        if self.nodes < 0:
            raise TooLarge("more than 100,000 values, shared ones counted each time")
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            return int.__int__(value)
        if isinstance(value, float):
            number = float.__float__(value)
            if number - number == 0.0:
                return number
            return {"$float": "nan" if number != number else "inf" if number > 0 else "-inf"}
        if isinstance(value, list):
            return [self.pack(item, depth + 1) for item in list.__iter__(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.pack(item, depth + 2) for item in tuple.__iter__(value)]}
        if isinstance(value, dict):
            return self.dict(dict.items(value), depth + 3)
        return self.opaque(value)

    def string(self, value):
        text = plain(value)
        self.text -= len(text.encode())
        if self.text < 0:
            raise TooLarge("more than 4 MiB of text")
        return text

    def dict(self, items, depth):
        pairs = [(self.pack(key, depth), self.pack(value, depth)) for key, value in items]
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            out = dict(pairs)
            if len(out) == len(pairs):
                return out
        return {"$dict": pairs}

    def opaque(self, value):
        text = plain(stable(repr(value)))
        if len(text) > MAX_REPR:
            text = text[:MAX_REPR] + "..."
        return {"$opaque": {"type": plain(type(value).__name__), "repr": text}}


def unpack(value):
    if type(value) is list:
        return [unpack(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        (tag, body), = value.items()
        if tag == "$tuple":
            return tuple(unpack(item) for item in body)
        if tag == "$dict":
            return {unpack(key): unpack(item) for key, item in body}
        if tag == "$float":
            return float(body)
        if tag == "$opaque":
            return body["repr"]
    return {key: unpack(item) for key, item in value.items()}


def raised(kind, message):
    """The exception that the host names. A type that Python does not know is raised as RuntimeError under its name."""
    known = vars(sys.modules["builtins"]).get(kind)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(message)
        except Exception:
            pass
    return RuntimeError(f"{kind}: {message}")


# ------------------------------------------------------------------------------------------------------------ output


class Out(io.TextIOBase):
    """stdout: line by line at first, so that a cell that is stopped has shown where it was, and in blocks later."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, channel):
        self.channel = channel
        self.parts = []
        self.size = 0
        self.eager = 64
        self.buffer = OutBytes(self)

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.parts.append(stable(text))
        self.size += len(text)
        if self.size >= 8192 or self.eager and text.endswith("\n"):
            self.eager -= self.eager > 0
            self.send()
        return len(text)

    def send(self):
        if self.size:
            text = "".join(self.parts)
            self.parts, self.size = [], 0
            for at in range(0, len(text), 1 << 20):
                self.channel.write(b"O", text[at:at + (1 << 20)])


class OutBytes(io.RawIOBase):
    def __init__(self, out):
        self.out = out

    def writable(self):
        return True

    def write(self, data):
        self.out.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


# -------------------------------------------------------------------------------------------------------- event loop


class HostCall(Coroutine):
    """What an asynchronous tool gives: the call is issued already, and awaiting it waits for the host's answer."""

    def __init__(self, name, future):
        self.__name__ = self.__qualname__ = name
        self.future = future
        self.steps = None

    def __await__(self):
        return self.future.__await__()

    def __repr__(self):
        return f"<coroutine {self.__name__}>"

    def send(self, value):
        if self.steps is None:
            self.steps = self.future.__await__()
        return self.steps.send(value)

    def throw(self, *error):
        if self.steps is None:
            self.steps = self.future.__await__()
        return self.steps.throw(*error)

    def close(self):
        if self.steps is not None:
            self.steps.close()


class Loop(asyncio.AbstractEventLoop):
    """An event loop without clock and files. Ready callbacks run in order; when there are none the host is asked for
    answers; when no answer is open the earliest timer fires, at once. So sleeping costs nothing, and a timeout never
    overtakes a call."""

    def __init__(self, session):
        self.session = session
        self.ready = deque()
        self.timers = []
        self.made = 0
        self.now = 0.0

    def run(self, task):
        stalls = 0
        while True:
            while self.ready:
                handle = self.ready.popleft()
                if not handle.cancelled():
                    try:
                        handle._run()
                    except BaseException:
                        pass  # a task keeps its own exception; SystemExit is re-raised on top of that
                if task.done():
                    return
            while self.timers and self.timers[0][2].cancelled():
                heapq.heappop(self.timers)
            if self.session.blocked():
                stalls = 0
            elif self.timers:
                self.now, _, handle = heapq.heappop(self.timers)
                self.ready.append(handle)
                stalls = 0
            else:
                stalls += 1
                if not self.stalled(task, stalls):
                    return

    def stalled(self, task, count):
        """Nothing can wake the cell: what it waits for raises. False if even that moves nothing."""
        waiter = task
        while isinstance(waiter, asyncio.Task):
            waiter = getattr(waiter, "_fut_waiter", None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(RuntimeError(STALLED))
            return True
        return count < 3 and task.cancel()

    def call_soon(self, callback, *args, context=None):
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.made += 1
        heapq.heappush(self.timers, (max(when, self.now), self.made, handle))
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle):
        pass

    def time(self):
        return self.now

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, **options):
        task = asyncio.Task(coro, loop=self, **options)
        # `gather` and others hand errors on as values: this comes before any callback of theirs.
        task.add_done_callback(self.session.check_task)
        return task

    def run_in_executor(self, executor, func, *args):
        """There are no threads: the function runs here and now."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def run_until_complete(self, future):
        if inspect.iscoroutine(future):
            future.close()
        raise RuntimeError("This event loop is already running")

    def run_forever(self):
        raise RuntimeError("This event loop is already running")

    def is_running(self):
        return True

    def is_closed(self):
        return False

    def stop(self):
        raise RuntimeError("this event loop cannot be stopped")

    close = stop

    async def shutdown_asyncgens(self):
        pass

    async def shutdown_default_executor(self, timeout=None):
        pass

    def get_debug(self):
        return False

    def set_debug(self, enabled):
        pass

    def get_task_factory(self):
        return None

    def get_exception_handler(self):
        return None

    def set_exception_handler(self, handler):
        pass

    def call_exception_handler(self, context):
        pass

    default_exception_handler = call_exception_handler


# ----------------------------------------------------------------------------------------------------------- session


def nest(levels):
    return levels and nest(levels - 1)


def is_memory_limit(error):
    """Whether an allocation failed. A MemoryError that a cell raises itself has words, or is of its own making."""
    if type(error) is MemoryError:
        return not error.args
    return isinstance(error, MemoryError) and type(error).__module__ != "__main__"


# What a `try` looks at before its own handlers. The names in it, in angle brackets, are none that a cell could use; and no
# Python function is called for any other error, which may be a stack overflow.
GUARD = "end() if isinstance(exc_info()[1], MemoryError) else ()"


def guard():
    tree = ast.parse(GUARD, mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = f"<{node.id}>"
    return ast.ExceptHandler(tree, None, [ast.Pass()])


def compiled(source, name):
    """The cell's code. Whether memory runs out depends on the machine, so no cell may go on from that: in front of its own
    handlers each `try` gets one that ends the cell at the limit, and that catches nothing else."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if "except" in source:
        with contextlib.suppress(RecursionError):
            tree = compile(source, name, "exec", flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            for node in ast.walk(tree):
                if isinstance(node, ast.Try) and node.handlers:
                    first = guard()
                    for part in ast.walk(first):
                        ast.copy_location(part, node.handlers[0])
                    node.handlers.insert(0, first)
            return compile(tree, name, "exec", flags=flags, dont_inherit=True)
    return compile(source, name, "exec", flags=flags, dont_inherit=True)


class Headroom:
    """Stack for a whole exchange with the host: one that a stack overflow cuts short would leave its reply behind."""

    def __enter__(self):
        nest(8)  # or the overflow happens here, before anything is said
        self.limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self.limit + 500)

    def __exit__(self, *error):
        sys.setrecursionlimit(self.limit)


class Session:
    def __init__(self, channel, functions):
        self.channel = channel
        self.loop = Loop(self)
        self.out = None
        self.cells = 0
        self.calls = 0
        self.asked = 0
        self.pending = {}
        self.worker = sys.modules["__main__"]  # kept: its names are this program's globals
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.scope = vars(self.module)
        self.scope["__builtins__"] = sys.modules["builtins"]
        self.scope["asyncio"] = asyncio
        for name, is_async in functions:
            self.scope[name] = self.tool(name, is_async)
        self.reserve = bytearray(1 << 18)
        self.watch_memory()

    def watch_memory(self):
        def end():
            self.check_memory(sys.exc_info()[1])
            return ()

        suppresses = contextlib.suppress.__exit__

        def __exit__(suppress, kind, error, trace):
            self.check_memory(error)
            return suppresses(suppress, kind, error, trace)

        for function in (end, isinstance, sys.exc_info, MemoryError):
            vars(sys.modules["builtins"])[f"<{function.__name__}>"] = function
        contextlib.suppress.__exit__ = __exit__

    def check_memory(self, error):
        """Ends the cell here and now, and with it this process, if the error is the memory limit's."""
        if not is_memory_limit(error):
            return
        self.reserve = None
        try:
            self.out.send()
        except MemoryError:
            pass  # the rest of its output is lost with it
        self.channel.write(b"D", '{"error":null,"memory":true}')
        os._exit(0)

    def check_task(self, task):
        if not task.cancelled():
            self.check_memory(task.exception())

    def tool(self, name, is_async):
        if is_async:
            def tool(*args, **kwargs):
                with Headroom():
                    future = self.loop.create_future()
                    self.pending[self.issue(name, args, kwargs)] = future
                    return HostCall(name, future)
        else:
            def tool(*args, **kwargs):
                with Headroom():
                    self.issue(name, args, kwargs)
                    value, error = self.result(self.last["now"])
                if error is not None:
                    raise error
                return value
        tool.__name__ = tool.__qualname__ = name
        tool.__module__ = "__main__"
        return tool

    def issue(self, name, args, kwargs):
        try:
            packer = Packer()
            body = {
                "call": self.calls,
                "name": name,
                "args": [packer.pack(value) for value in args],
                "kwargs": [(plain(key), packer.pack(value)) for key, value in kwargs.items()],
            }
        except TooLarge as why:
            text = f"the arguments of {name}() are too large to leave the REPL: {why}"
            raise ValueError(text) from None
        number = self.calls
        self.calls += 1
        self.last = self.ask(b"C", body)
        return number

    def ask(self, kind, body):
        self.out.send()
        self.asked += 1
        self.channel.write(kind, dumps(body))
        # A cell may have caught an error that cut an earlier question short: its reply is still there.
        while True:
            reply = self.channel.read()
            if reply["re"] == self.asked:
                return reply

    @staticmethod
    def result(result):
        if "value" in result:
            return unpack(result["value"]), None
        return None, raised(*result["raised"])

    def blocked(self):
        """Asks the host for answers. False if no call is open."""
        open_calls = [number for number, future in self.pending.items() if not future.done()]
        if not open_calls:
            return False
        for number, result in self.ask(b"B", open_calls)["answers"]:
            value, error = self.result(result)
            future = self.pending.pop(number)
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        return True

    async def main(self, code):
        try:
            value = eval(code, self.scope)
            if code.co_flags & inspect.CO_COROUTINE:
                await value
        except BaseException as error:
            return error

    def cell(self, source):
        self.cells += 1
        self.calls = self.asked = 0
        self.out = sys.stdout = Out(self.channel)
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        error = None
        try:
            code = compiled(source, name)
        except BaseException as refused:
            error = refused
        else:
            error = self.execute(code)
        for future in self.pending.values():
            if not future.done():
                future.set_exception(RuntimeError(EARLIER))
                future.exception()
        self.pending.clear()
        self.out.send()
        is_memory = is_memory_limit(error)
        text = None if error is None else self.error_text(error)
        del error
        self.channel.write(b"D", dumps({"error": text, "memory": is_memory}))

    def execute(self, code):
        asyncio._set_running_loop(self.loop)
        try:
            task = self.loop.create_task(self.main(code))
            self.loop.run(task)
            if not task.done():
                return RuntimeError(STALLED)
            return asyncio.CancelledError() if task.cancelled() else task.result()
        finally:
            asyncio._set_running_loop(None)

    @staticmethod
    def error_text(error):
        try:
            text = str(error)
        except BaseException:
            text = "<an error whose text cannot be made>"
        return plain(stable(f"{type(error).__name__}: {text}"[:MAX_ERROR]))
