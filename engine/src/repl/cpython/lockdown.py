"""What comes before an agent's code: a standing clock, seeded randomness, and the sandbox. `worker.py` and `forkserver.py`
follow in the same program."""

import ctypes
import datetime
import os
import random
import resource
import sys
import time

NOW = 1_767_225_600  # 1 January 2026, 00:00 UTC

# What prctl does.
DEATH_SIGNAL, SUBREAPER = 1, 36


def fix_clock():
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        value = NOW if name == "time" else 0
        setattr(time, name, lambda value=float(value): value)
        setattr(time, name + "_ns", lambda value=value * 10**9: value)
    time.clock_gettime = lambda clock: float(NOW)
    time.clock_gettime_ns = lambda clock: NOW * 10**9
    time.sleep = lambda seconds: None
    gmtime, ctime, asctime, strftime = time.gmtime, time.ctime, time.asctime, time.strftime
    time.gmtime = time.localtime = lambda seconds=None: gmtime(NOW if seconds is None else seconds)
    time.ctime = lambda seconds=None: ctime(NOW if seconds is None else seconds)
    time.asctime = lambda when=None: asctime(gmtime(NOW) if when is None else when)
    time.strftime = lambda form, when=None: strftime(form, gmtime(NOW) if when is None else when)
    kind = datetime.datetime
    # The type is immutable from Python, and `now` asks the system directly.
    proxy = kind.__dict__
    place = id(proxy) + 2 * ctypes.sizeof(ctypes.c_void_p)
    namespace = ctypes.cast(place, ctypes.POINTER(ctypes.py_object))[0]
    namespace["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(NOW, tz))
    namespace["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(NOW))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def fix_randomness(seed):
    source = random.Random(f"rao-log {seed}")
    os.urandom = lambda size: source.randbytes(size)
    random._urandom = os.urandom
    make = random.Random.seed

    def seeded(self, a=None, version=2):
        make(self, source.getrandbits(128) if a is None else a, version)

    random.Random.seed = seeded
    random.seed(seed)
    os.getpid = os.getppid = lambda: 1


# ----------------------------------------------------------------------------------------------------------- sandbox

# Numbers on x86-64 and on 64-bit ARM; 0 where the call does not exist there. Reads of files are left to Landlock.
DENIED = """
socket 41 198 socketpair 53 199 connect 42 203 bind 49 200 listen 50 201 accept 43 202 accept4 288 242 sendto 44 206
sendmsg 46 211 sendmmsg 307 269 recvmsg 47 212 recvmmsg 299 243
clone 56 220 clone3 435 435 fork 57 0 vfork 58 0 execve 59 221 execveat 322 281 ptrace 101 117 kill 62 129 tkill 200 130
tgkill 234 131 rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 pidfd_open 434 434 pidfd_send_signal 424 424
pidfd_getfd 438 438 process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440 kcmp 312 272
creat 85 0 openat2 437 437 unlink 87 0 unlinkat 263 35 rename 82 0 renameat 264 38 renameat2 316 276 mkdir 83 0
mkdirat 258 34 rmdir 84 0 link 86 0 linkat 265 37 symlink 88 0 symlinkat 266 36 chmod 90 0 fchmod 91 52 fchmodat 268 53
fchmodat2 452 452 chown 92 0 fchown 93 55 lchown 94 0 fchownat 260 54 truncate 76 45 ftruncate 77 46 fallocate 285 47
utime 132 0 utimes 235 0 futimesat 261 0 utimensat 280 88 mknod 133 0 mknodat 259 33 setxattr 188 5 lsetxattr 189 6
fsetxattr 190 7 removexattr 197 14 lremovexattr 198 15 fremovexattr 199 16 memfd_create 319 279 mq_open 240 180
mq_unlink 241 181 shmget 29 194 shmat 30 196 shmctl 31 195 msgget 68 186 semget 64 190
mount 165 40 umount2 166 39 pivot_root 155 41 chroot 161 51 open_tree 428 428 move_mount 429 429 fsopen 430 430
fsmount 432 432 mount_setattr 442 442 open_by_handle_at 304 265 quotactl 179 60 swapon 167 224 swapoff 168 225
unshare 272 97 setns 308 268 bpf 321 280 perf_event_open 298 241 io_uring_setup 425 425 io_uring_enter 426 426
io_uring_register 427 427 keyctl 250 219 add_key 248 217 request_key 249 218 userfaultfd 323 282 init_module 175 105
finit_module 313 273 delete_module 176 106 kexec_load 246 104 kexec_file_load 320 294 reboot 169 142
sethostname 170 161 setdomainname 171 162 settimeofday 164 170 clock_settime 227 112 adjtimex 159 171
clock_adjtime 305 266 acct 163 89 personality 135 92 syslog 103 116 iopl 172 0 ioperm 173 0 setuid 105 146
setgid 106 144 setreuid 113 145 setregid 114 143 setresuid 117 147 setresgid 119 149 setgroups 116 159 setfsuid 122 151
setfsgid 123 152 capset 126 91 setpriority 141 140 sched_setaffinity 203 122 sched_setscheduler 144 119
sched_setparam 142 118 sched_setattr 314 274 ioprio_set 251 30 vhangup 153 58 setrlimit 160 164 modify_ldt 154 0
migrate_pages 256 238 move_pages 279 239 fanotify_init 300 262 quotactl_fd 443 443 fspick 433 433 setxattrat 463 463
removexattrat 466 466 open_tree_attr 467 467 file_setattr 469 469
""".split()


class Kernel:
    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.syscall.restype = ctypes.c_long

    def call(self, number, *args):
        done = self.libc.syscall(ctypes.c_long(number), *args)
        if done < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return done


def limit_resources(memory, cpu):
    pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData:"))
    for what, most in (
        (resource.RLIMIT_DATA, data + memory + (1 << 20)),
        (resource.RLIMIT_AS, pages + memory + (1 << 29)),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def file_rules(kernel, readable):
    """Landlock: nothing can be written or made, and only Python's own folders can be read. Gives the rules' descriptor."""
    version = kernel.call(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    rights = [13, 14, 15, 15, 16, 16][min(version, 6) - 1]
    attribute = (ctypes.c_uint64 * 3)((1 << rights) - 1, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = kernel.call(444, ctypes.byref(attribute), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for path in readable:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = 12 if os.path.isdir(path) else 4  # read files (4) and folders (8)
        rule = ctypes.create_string_buffer(allowed.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder), 12)
        kernel.call(445, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
        os.close(fd)
    return rules


def restrict_files(kernel, rules):
    kernel.call(446, ctypes.c_int(rules), ctypes.c_uint32(0))


def call_rules():
    """seccomp: no network, no processes or threads, no signals, no change of any file."""
    machine = os.uname().machine
    column = {"x86_64": 1, "aarch64": 2}.get(machine)
    if column is None or sys.maxsize < 1 << 32:
        raise OSError(f"there is no system call table for {machine}")
    arch = {1: 0xC000003E, 2: 0xC00000B7}[column]
    numbers = [int(DENIED[at + column]) for at in range(0, len(DENIED), 3)]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    deny = (give, 0, 0, 0x00050001)  # EPERM
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, 0x80000000), (load, 0, 0, 0)]
    if column == 1:
        program += [(at_least, 0, 1, 0x40000000), deny]
    for number in filter(None, numbers):
        program += [(equal, 0, 1, number), deny]
    # open and openat: deny whatever could write, make or cut a file.
    for number, flags in (((2, 1), (257, 2)) if column == 1 else ((56, 2),)):
        program += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * flags), (any_bit, 0, 1, 0o1103), deny, (load, 0, 0, 0)]
    # prlimit64: reading one's own limits is fine, setting is not.
    number = {1: 302, 2: 261}[column]
    for half in (16 + 8 * 2, 20 + 8 * 2):
        program += [(equal, 0, 4, number), (load, 0, 0, half), (equal, 1, 0, 0), deny, (load, 0, 0, 0)]
    # prctl: a session ends with the process that keeps it, and cannot call that off.
    program += [(equal, 0, 4, {1: 157, 2: 167}[column]), (load, 0, 0, 16), (equal, 0, 1, DEATH_SIGNAL), deny, (load, 0, 0, 0)]
    # fcntl: no owner and no signal for a descriptor, which would reach other processes.
    denied = [line for command in (8, 10, 15) for line in ((equal, 0, 1, command), deny)]
    program += [(equal, 0, len(denied) + 2, {1: 72, 2: 25}[column]), (load, 0, 0, 24), *denied, (load, 0, 0, 0)]
    # ioctl: only what Python itself asks of a descriptor; others change a file's attributes.
    allow = (give, 0, 0, 0x7FFF0000)
    requests = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
    known = [line for request in requests for line in ((equal, 0, 1, request), allow)]
    program += [(equal, 0, len(known) + 2, {1: 16, 2: 29}[column]), (load, 0, 0, 24), *known, deny]
    program.append(allow)

    class Line(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("lines", ctypes.POINTER(Line))]

    lines = (Line * len(program))(*[Line(*line) for line in program])
    return {1: 317, 2: 277}[column], Program(len(program), lines)


def filter_calls(kernel, rules):
    seccomp, program = rules
    kernel.call(seccomp, ctypes.c_uint(1), ctypes.c_uint(0), ctypes.byref(program))


def drop_capabilities(kernel):
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    kernel.call({"x86_64": 126, "aarch64": 91}[os.uname().machine], head, (ctypes.c_uint32 * 6)())


class Protection:
    """Everything that this machine allows: made once, by the process that sessions are forked from, and put on by each."""

    def __init__(self):
        self.kernel = Kernel() if sys.platform == "linux" else None
        readable = [sys.prefix, sys.base_prefix, *sys.path, "/usr/lib", "/usr/local/lib", "/lib", "/lib64",
                    "/usr/share/zoneinfo", "/etc/ld.so.cache", "/dev/null"]
        self.files = self.made(lambda: file_rules(self.kernel, [path for path in readable if path]))
        self.calls = self.made(call_rules)

    def made(self, make):
        """What `make` gives, and why it gives nothing."""
        if not self.kernel:
            return None, f"there is none on {sys.platform}"
        try:
            return make(), None
        except Exception as error:
            return None, reason(error)

    def put_on(self, memory, cpu):
        """For each protection why it is off, or None."""
        if self.kernel:
            self.kernel.libc.prctl(38, 1, 0, 0, 0)  # no new privileges: Landlock and seccomp ask for it
        limits = attempt(limit_resources, memory, cpu)
        landlock = self.apply(restrict_files, self.files)
        if self.kernel:
            attempt(drop_capabilities, self.kernel)
        return {"limits": limits, "landlock": landlock, "seccomp": self.apply(filter_calls, self.calls)}

    def apply(self, step, rules):
        made, off = rules
        return off or attempt(step, self.kernel, made)


def attempt(step, *args):
    try:
        step(*args)
    except Exception as error:
        return reason(error)


def reason(error):
    return (str(error) or type(error).__name__).encode("ascii", "replace").decode()
