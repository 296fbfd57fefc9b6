"""Where sessions come from: processes that have loaded everything that a session needs, and never run an agent's code.

The *keeper* is the process that the host starts. For each connection of the host it has one session made; it is the parent
of all of them, ends one when the host says so, and tells how one ended. A session that is over stays a zombie until the
host asks, so no process number can mean another process by then. When the host is gone the keeper ends them all.

The *template* is a fork of the keeper that does nothing but fork, each time in exactly the same way. So its memory is the
same at each fork, and the addresses of a session's objects do not tell what other sessions did before. What it forks forks
once more and ends; the session, without a parent, falls to the keeper. Where the system gives orphans to nobody but the
first process, the keeper forks by itself.
"""

import gc
import select
import signal
import socket
import struct

PATIENCE = 20.0  # seconds in which a session must be there
REPORT = struct.Struct("<cI")
CONNECTION = 3  # a session's descriptor to the host, its only one beside the standard three


def silence():
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


class Door:
    """Where the host connects once for each session: a name without a file on Linux, a folder of its own elsewhere."""

    def __init__(self):
        self.token = os.urandom(16)  # the host knows by this that it speaks with a session of this program
        self.folder = None
        name = f"rao-log-{os.urandom(16).hex()}"
        if sys.platform == "linux":
            self.name = b"\0" + name.encode()
        else:
            self.folder = f"/tmp/{name}"
            os.mkdir(self.folder, 0o700)
            self.name = f"{self.folder}/s".encode()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.name)
        self.listener.listen(64)

    def accept(self, host):
        """The next connection, or None if it is not the host's: anyone on the machine can use a name without a file."""
        connection, _ = self.listener.accept()
        if self.folder is None:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("=iII", credentials)
            if (pid, uid) != (host, os.getuid()):
                connection.close()
                return None
        return connection

    def remove(self):
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.name)
                os.rmdir(self.folder)


def die_with(parent):
    """Asks the system to end this process with its parent, wherever that can be asked."""
    if protection.kernel:
        protection.kernel.libc.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)


def breed(bell, reports, keeper):
    """The template: forks at each ring of the bell. Returns in each session. Nothing here may leave anything behind."""
    while os.read(bell, 1):
        try:
            first = os.fork()
        except OSError as error:
            os.write(reports, REPORT.pack(b"T", error.errno))
            continue
        if not first:
            return born(keeper)
        os.write(reports, REPORT.pack(b"T", os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])))
        del first
    os._exit(0)


def born(keeper):
    """In a fork of the template: forks once more, ends, and leaves the session to the keeper."""
    first = os.getpid()
    try:
        second = os.fork()
    except OSError as error:
        os._exit(error.errno)
    if second:
        os._exit(0)
    while os.getppid() == first:
        os.sched_yield()
    die_with(keeper)


class Keeper:
    def __init__(self, control, door, host):
        self.control = control
        self.door = door
        self.host = host
        self.sessions = set()
        self.reports, self.reporting = os.pipe()
        self.early = []
        self.template = self.bell = None

    def run(self):
        """Serves the host until that is gone. Returns in each session, with its connection."""
        if protection.kernel and protection.kernel.libc.prctl(SUBREAPER, 1, 0, 0, 0) == 0 and not self.start_template():
            return self.begin()
        self.control.send(b"L", self.door.token + self.door.name)
        poll = select.poll()
        for fd in (self.control.fd, self.door.listener.fileno(), self.reports):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.control.fd:
                    self.answer(self.control.next())
                elif fd == self.reports:
                    self.stop()  # nobody is left to report
                elif self.fork():
                    return self.begin()

    def start_template(self):
        """True in the keeper; in each session that comes of it false."""
        keeper = os.getpid()
        listening, self.bell = os.pipe()
        self.template = os.fork()
        if self.template:
            os.close(listening)
            os.close(self.reporting)
            return True
        die_with(keeper)
        for fd in (self.control.fd, self.reports, self.bell):
            os.close(fd)
        return breed(listening, self.reporting, keeper)

    def begin(self):
        """What a session does first: it takes its connection, and says to both sides which process it is."""
        connection = self.door.accept(self.host)
        os.write(self.reporting, REPORT.pack(b"S" if connection else b"F", os.getpid()))
        if not connection:
            os._exit(0)
        self.door.listener.detach()  # the number is closed with all others that the session does not need
        fd = connection.detach()
        if fd != CONNECTION:
            os.dup2(fd, CONNECTION, inheritable=False)
        channel = Channel(CONNECTION)
        channel.send(b"H", self.door.token + os.getpid().to_bytes(4, "little"))
        return channel

    def fork(self):
        """Has a session made for the connection that waits. True in that session itself, if it is forked here."""
        if self.template is None:
            try:
                if not os.fork():
                    return True
            except OSError as error:
                return self.refuse(error.errno)
        else:
            try:
                os.write(self.bell, b".")
            except OSError:
                self.stop()
            _, problem = self.report(b"T")
            if problem:
                return self.refuse(problem)
        kind, pid = self.report(b"S", b"F")
        if kind == b"S":
            self.sessions.add(pid)
        else:
            os.waitpid(pid, 0)
        return False

    def report(self, *kinds):
        """The next report of one of these kinds. A template and its fork report in any order."""
        while True:
            for report in self.early:
                if report[0] in kinds:
                    self.early.remove(report)
                    return report
            if not select.select([self.reports], [], [], PATIENCE)[0]:
                self.stop()
            data = os.read(self.reports, REPORT.size)
            if len(data) < REPORT.size:
                self.stop()
            self.early.append(REPORT.unpack(data))

    def refuse(self, problem):
        connection = self.door.accept(self.host)
        if connection:
            with contextlib.suppress(OSError):
                Channel(connection.fileno()).write(b"F", os.strerror(problem))
            connection.close()
        return False

    def answer(self, order):
        if order is None:
            self.stop()
        pid = order["process"]
        if pid not in self.sessions:
            self.stop()
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done and order["end"]:
            os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0)
        if done:
            self.sessions.remove(pid)
        self.control.write(b"E", dumps(status if done else None))

    def stop(self):
        """Ends every process of this program, this one last, and leaves no zombie."""
        self.door.remove()
        children = [*self.sessions, *([self.template] if self.template else [])]
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        os._exit(0)


# ------------------------------------------------------------------------------------------------------------ program

os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 20))  # what the host's own parents may have left open
control = Channel(os.dup(0))
silence()
wanted = control.read()
sys.path[:] = wanted["path"]
sys.argv = [""]
os.environ.pop("LC_CTYPE", None)  # Python sets it by itself in an empty environment
fix_clock()
protection = Protection()
keeper = Keeper(control, Door(), wanted["host"])
gc.collect()
gc.freeze()  # a collection in a session would touch, and so copy, everything that it shares with the others


def begin(channel):
    order = channel.read()
    fix_randomness(order["seed"])
    sys.setrecursionlimit(order["recursion"] + 50)
    session = Session(channel, order["functions"])
    ready = protection.put_on(order["memory"], order["cpu"])
    os.closerange(CONNECTION + 1, 256)
    ready["version"] = ".".join(map(str, sys.version_info[:3]))
    channel.write(b"R", dumps(ready))
    return session


def serve(channel):
    session = begin(channel)
    while True:
        order = channel.read()
        if "define" in order:
            session.scope.update(order["define"])
        else:
            session.cell(order["cell"])


serve(keeper.run())
