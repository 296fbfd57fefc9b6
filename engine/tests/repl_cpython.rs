//! The CPython engine: the reference cells, equality with the embedded engine, limits, the sandbox, and workers that go
//! away. Where there is no usable `python3`, or the machine allows no sandbox, the tests say that they are skipped.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod world;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rao_engine::record::{Plan, record};
use rao_engine::repl::{
    CellLimits, CellOutput, Cpython, CpythonError, CpythonOptions, Function, Limit, MAX_CODE, Monty, Progress, Repl,
    ReplEngine, ReplError, Reply,
};
use rao_engine::{BudgetModel, EngineConfig, Scheduler, Scripted};
use rao_envs::judge::Panel;
use rao_envs::textcraft::{TextCraft, TextCraftConfig};
use rao_envs::{Environment, PromptStyle, Script, Selection, Split, ToolResult, Value};
use rao_policy::Chat;
use rao_store::event::{Body, HostFacts};
use rao_store::{EventSource, Filter, Log, Options, RolloutId, RunId, Seq, Stream};
use rao_testkit::run_cell as cell;
use world::{Host, ORDERS, Order, cells, expected_cells, files};

fn engine_with(options: CpythonOptions) -> Option<Cpython> {
    match Cpython::new(options) {
        Ok(engine) => Some(engine),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn engine() -> Option<Cpython> {
    engine_with(CpythonOptions::default())
}

fn small() -> CellLimits {
    CellLimits { time_ms: 1_500, memory: 32 << 20, ..CellLimits::default() }
}

fn open(engine: &Cpython, limits: &CellLimits) -> Box<dyn Repl> {
    engine.open(&[Function::sync("echo"), Function::asynchronous("launch_subagent")], limits, 3).unwrap()
}

fn error(repl: &mut dyn Repl, code: &str) -> String {
    let output = cell(repl, code);
    assert!(output.limit.is_none() && !output.rejected, "{code}: {output:?}");
    output.error.unwrap_or_else(|| panic!("{code} raises nothing: {}", output.stdout))
}

fn read(path: &Path) -> (Vec<String>, Vec<String>) {
    let source = std::fs::read_to_string(path).unwrap();
    (cells(&source), expected_cells(&std::fs::read_to_string(path.with_extension("expected")).unwrap()))
}

#[test]
fn every_reference_cell_is_equal_under_every_answer_order() {
    let (Some(files), Some(engine)) = (files(), engine()) else { return };
    for path in files {
        let (cells, expected) = read(&path);
        assert_eq!(cells.len(), expected.len(), "{}", path.display());
        for order in ORDERS {
            let mut host = Host::new(&engine, order);
            for (code, expected) in cells.iter().zip(&expected) {
                assert_eq!(host.cell(code), *expected, "{} under {order:?}:\n{code}", path.display());
            }
            assert_eq!(host.restores > cells.len(), order == Order::Restored);
        }
    }
}

/// What the embedded engine says of Python that it does not have.
fn is_unsupported(output: &CellOutput) -> bool {
    let kinds =
        ["NotImplementedError", "AttributeError", "ModuleNotFoundError", "TypeError", "NameError", "SyntaxError"];
    output.error.as_ref().is_some_and(|error| kinds.iter().any(|kind| error.starts_with(kind)))
}

#[test]
fn both_engines_give_the_same_where_the_embedded_one_can() {
    let (Some(files), Some(engine)) = (files(), engine()) else { return };
    let monty = Monty::new();
    let (mut equal, mut unsupported) = (0, 0);
    for path in files {
        for order in [Order::FirstInFirstOut, Order::LastInFirstOut, Order::OneBatch] {
            let (mut one, mut other) = (Host::new(&monty, order), Host::new(&engine, order));
            for code in read(&path).0 {
                let (one, other) = (one.output(&code), other.output(&code));
                if one == other {
                    equal += 1;
                } else {
                    assert!(is_unsupported(&one), "{}:\n{code}\n{one:?}\n{other:?}", path.display());
                    // What a later cell needs is missing now.
                    unsupported += 1;
                    break;
                }
            }
        }
    }
    println!("{equal} cells equal, {unsupported} runs ended at a cell that the embedded engine does not support");
    assert!(equal >= 60, "{equal}");
}

const RUN: RunId = RunId([9; 16]);

/// The events of a recording on `repl`.
fn recorded(repl: Arc<dyn ReplEngine>, script: Script, preset: &str, tasks: usize) -> Vec<Vec<Body>> {
    let env: Arc<dyn Environment> = Arc::new(TextCraft::new(TextCraftConfig::default()).unwrap());
    let selection = Selection { presets: vec![preset.into()], split: Split::Train, count: Some(tasks), seed: 5 };
    let config = EngineConfig {
        recursive: true,
        max_depth: 3,
        max_steps: 10,
        budget: BudgetModel::PerAgent,
        max_nodes: 64,
        context: 16_384,
        max_tokens: 1_024,
        temperature: 1.0,
        prompt: PromptStyle::Brief,
        loop_guard: true,
        lambda: 0.5,
        cell: CellLimits { time_ms: 10_000, ..CellLimits::default() },
        scheduler: Scheduler::Rounds,
        ancestors: false,
        judges: None,
        top_p: 1.0,
        decoding: rao_engine::Decoding::default(),
        chat_template_kwargs: rao_policy::TemplateValues::default(),
    };
    let tasks = env.tasks(&selection).unwrap();
    let plan = Plan { env, tasks, group_size: 1, config, seed: 1, only: None, width: 4, panel: Panel::default() };
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::open(dir.path(), Options::new(Arc::new(|| 1))).unwrap().0);
    let host = HostFacts { program: "test".into(), facts: Vec::new() };
    let mut actor = Scripted::new(script, Arc::new(Chat::bytes().unwrap()));
    record(&log, RUN, &plan, host, &mut actor, &repl, &mut |_| ControlFlow::Continue(())).unwrap();
    let events = |rollout| {
        let stream = Stream::Rollout(RUN, RolloutId(rollout));
        log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
    };
    plan.rollouts().iter().map(|rollout| events(rollout.0)).collect()
}

#[test]
fn rollouts_are_the_same_event_by_event_on_both_engines() {
    let Some(engine) = engine() else { return };
    let engine: Arc<dyn ReplEngine> = Arc::new(engine);
    for (script, preset, tasks) in
        [(Script::Oracle, "tiny", 2), (Script::Noisy, "tiny", 4), (Script::Oracle, "medium", 1)]
    {
        let one = recorded(Arc::new(Monty::new()), script, preset, tasks);
        let other = recorded(Arc::clone(&engine), script, preset, tasks);
        for (one, other) in one.iter().zip(&other) {
            for (one, other) in one.iter().zip(other) {
                assert_eq!(one, other);
            }
            assert_eq!(one.len(), other.len());
        }
        let cells = one.iter().flatten().filter(|body| matches!(body, Body::CellFinished(_))).count();
        println!("{script:?} {preset}: {cells} cells equal");
        assert!(cells > 5);
    }
}

#[test]
fn a_limit_ends_the_cell_and_gives_back_the_session_before_it() {
    let Some(engine) = engine() else { return };
    let hostile = [
        (Limit::Time, "kept = 2\nwhile True:\n    pass"),
        (
            Limit::Time,
            "kept = 2\nwhile True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        ),
        (Limit::Time, "kept = 2\nimport re\nre.match('(a+)+$', 'a' * 40 + 'b')"),
        (Limit::Memory, "kept = 2\nx = []\nwhile True:\n    x.append('a' * 100_000)"),
        (Limit::Memory, "kept = 2\nx = 'a' * 10**10"),
        (Limit::Memory, "kept = 2\nx = list(range(10**12))"),
        // Whether memory runs out depends on the machine, so a cell cannot catch that and go on.
        (Limit::Memory, "kept = 2\ntry:\n    x = 'a' * 10**10\nexcept MemoryError:\n    print('caught')"),
        (Limit::Memory, "kept = 2\ntry:\n    x = 'a' * 10**10\nexcept Exception:\n    print('caught')"),
        (
            Limit::Memory,
            "kept = 2\nx = []\ndef fill():\n    try:\n        while True:\n            x.append('a' * 100_000)\n    \
             except:\n        x.clear()\nfill()\nprint('caught')",
        ),
        (Limit::Memory, "import contextlib\nwith contextlib.suppress(MemoryError):\n    'a' * 10**10\nprint('caught')"),
        (
            Limit::Memory,
            "import asyncio\nasync def big():\n    return 'a' * 10**10\nr = await asyncio.gather(big(), \
             return_exceptions=True)\nprint('caught')",
        ),
        (Limit::Calls, "kept = 2\nfor i in range(1001):\n    echo(i)"),
        (Limit::Calls, "kept = 2\ntry:\n    for i in range(1001):\n        echo(i)\nexcept BaseException:\n    pass"),
    ];
    let mut repl = open(&engine, &small());
    assert_eq!(cell(&mut *repl, "kept = 1\nbig = 'b' * 1_000_000"), CellOutput::default());
    for (limit, code) in hostile {
        let start = Instant::now();
        let output = cell(&mut *repl, &format!("print('begun')\n{code}"));
        assert_eq!((output.limit, output.stdout.as_str()), (Some(limit), "begun\n"), "{code}: {output:?}");
        assert!(output.error.is_some_and(|text| text.contains("was stopped")), "{code}");
        assert!(start.elapsed() < Duration::from_secs(20), "{code} took {:?}", start.elapsed());
        assert_eq!(cell(&mut *repl, "print(kept, len(big))").stdout, "1 1000000\n", "after {code}");
    }
}

#[test]
fn cells_cannot_reach_out() {
    let Some(engine) = engine() else { return };
    println!("{}", engine.protections());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("there");
    std::fs::write(&file, "secret").unwrap();
    let file = file.display().to_string();
    let mut repl = open(&engine, &small());
    let denied = [
        "import socket\nsocket.socket()".to_owned(),
        "import socket\nsocket.socketpair()".to_owned(),
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')".to_owned(),
        format!("open({file:?}, 'w')"),
        format!("open({file:?}, 'a')"),
        format!("open({file:?} + '2', 'x')"),
        format!("import os\nos.open({file:?}, os.O_RDONLY | os.O_TRUNC)"),
        format!("import os\nos.remove({file:?})"),
        format!("import os\nos.rename({file:?}, {file:?} + '2')"),
        format!("import os\nos.chmod({file:?}, 0)"),
        format!("import os\nos.mkdir({file:?} + '2')"),
        format!("import os\nos.symlink('x', {file:?} + '2')"),
        format!("import os\nos.utime({file:?})"),
        "import os\nos.fork()".to_owned(),
        "import mmap\nmmap.mmap(-1, 10**10)".to_owned(),
        "import subprocess\nsubprocess.run(['true'])".to_owned(),
        "import os\nos.execv('/bin/true', ['true'])".to_owned(),
        "import os\nos.kill(os.getppid(), 0)".to_owned(),
        "import threading\nthreading.Thread(target=print).start()".to_owned(),
        "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))".to_owned(),
        "import fcntl\nfcntl.fcntl(0, fcntl.F_SETOWN, 1)".to_owned(),
        "import fcntl, os\nfcntl.ioctl(os.open(os.__file__, os.O_RDONLY), 0x40086602, b'0' * 8)".to_owned(),
        // The same past Python's own wrappers: 41 and 57 are `socket` and `fork` on x86-64, 198 and 220 on ARM.
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\narm = os.uname().machine == 'aarch64'\n\
         assert libc.syscall(198 if arm else 41, 2, 1, 0) == -1 and ctypes.get_errno() == 1\n\
         assert libc.syscall(220 if arm else 57, 17, 0, 0, 0, 0) == -1\nraise PermissionError"
            .to_owned(),
    ];
    for code in denied {
        let text = error(&mut *repl, &code);
        let named = [
            "PermissionError",
            "URLError",
            "RuntimeError: can't start new thread",
            "ValueError: not allowed",
            "Cannot allocate memory",
        ];
        assert!(named.iter().any(|name| text.contains(name)), "{code}: {text}");
    }
    if engine.protections().all() {
        for code in [format!("open({file:?}).read()"), "import os\nos.listdir('/')".to_owned()] {
            assert!(error(&mut *repl, &code).starts_with("PermissionError"), "{code}");
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "secret");
    let bomb = "import os\nn = 0\nfor i in range(1000):\n    try:\n        os.fork()\n        n += 1\n    except OSError:\n        pass\nprint(n)";
    assert_eq!(cell(&mut *repl, bomb).stdout, "0\n");
    let empty = "import os\nprint(sorted(os.environ))";
    assert_eq!(cell(&mut *repl, empty).stdout, "['OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PYTHONHASHSEED', 'TZ']\n");
}

fn kill(process: u32) {
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
}

#[test]
fn a_killed_worker_is_made_again() {
    let Some(engine) = engine() else { return };
    let mut repl = open(&engine, &small());
    assert_eq!(cell(&mut *repl, "x = echo(20)\nprint(x)").stdout, "20\n");
    let first = engine.processes();
    assert_eq!(first.len(), 1);
    kill(first[0]);
    assert_eq!(cell(&mut *repl, "x += 1\nprint(x)").stdout, "21\n", "killed between two cells");
    let second = engine.processes();
    assert_ne!(first, second);
    // In the middle of a cell: what it did is done again with the same answers, and the host sees nothing of it.
    let code = "print('a')\ny = echo(x)\nz = launch_subagent(y)\nprint(await z, y, x)";
    let Progress::Call(call) = repl.start(code).unwrap() else { panic!("it calls echo") };
    assert_eq!(call.args.args, [Value::Int(21)]);
    let Progress::Call(call) = repl.answer(Reply::Now(ToolResult::Value(Value::Int(5)))).unwrap() else {
        panic!("it launches")
    };
    assert_eq!((call.call, call.is_async), (1, true));
    kill(second[0]);
    assert_eq!(repl.answer(Reply::Pending).unwrap(), Progress::Blocked { pending: vec![1] });
    kill(engine.processes()[0]);
    let answers = vec![(1, ToolResult::Value(Value::str("done")))];
    let Progress::Done(output) = repl.answer(Reply::Answers(answers)).unwrap() else { panic!("it is over") };
    assert_eq!((output.stdout.as_str(), output.error), ("a\ndone 5 21\n", None));
}

#[test]
fn a_cell_that_breaks_its_worker_is_stopped_and_the_session_lives() {
    let Some(engine) = engine() else { return };
    let mut repl = open(&engine, &small());
    assert_eq!(cell(&mut *repl, "kept = 1"), CellOutput::default());
    let forged = "import os, gc\nchannel = next(o for o in gc.get_objects() if type(o).__name__ == 'Channel')\n";
    for (code, reason) in [
        ("import os\nos._exit(7)".to_owned(), "exit status: 7"),
        ("import ctypes\nctypes.string_at(0)".to_owned(), "SIGSEGV"),
        (format!("{forged}os.write(channel.fd, b'garbage')"), "it sent a message of"),
        (format!("{forged}channel.write(b'B', '[5]')"), "it waits for the calls [5]"),
        (
            format!("{forged}channel.write(b'C', '{{\"call\":0,\"name\":\"nope\",\"args\":[],\"kwargs\":[]}}')"),
            "which does not exist",
        ),
        (
            format!("{forged}channel.write(b'C', '{{\"call\":9,\"name\":\"echo\",\"args\":[],\"kwargs\":[]}}')"),
            "numbered call 0 as 9",
        ),
    ] {
        let output = cell(&mut *repl, &format!("kept = 2\n{code}"));
        assert_eq!(output.limit, Some(Limit::Memory), "{code}: {output:?}");
        let text = output.error.unwrap();
        assert!(text.contains("broke the Python interpreter") && text.contains(reason), "{code}: {text}");
        assert_eq!(cell(&mut *repl, "print(kept)").stdout, "1\n", "after {code}");
    }
}

#[test]
fn many_sessions_share_few_workers() {
    let Some(engine) = engine_with(CpythonOptions { workers: 2, ..CpythonOptions::default() }) else { return };
    let mut repls: Vec<_> = (0..4).map(|_| open(&engine, &small())).collect();
    for (at, repl) in repls.iter_mut().enumerate() {
        assert_eq!(cell(&mut **repl, &format!("x = {at}")), CellOutput::default());
        assert!(engine.processes().len() <= 2);
    }
    // A session that waits for answers can lose its worker as well.
    let waiting = repls[3].start("print(await launch_subagent(x) + x)").unwrap();
    assert!(matches!(waiting, Progress::Call(_)));
    for round in 1..3 {
        for (at, repl) in repls.iter_mut().enumerate().take(3) {
            assert_eq!(cell(&mut **repl, "x += 10\nprint(x)").stdout, format!("{}\n", at + 10 * round));
            assert!(engine.processes().len() <= 2);
        }
    }
    assert_eq!(repls[3].answer(Reply::Pending).unwrap(), Progress::Blocked { pending: vec![0] });
    let answers = Reply::Answers(vec![(0, ToolResult::Value(Value::Int(100)))]);
    let Progress::Done(output) = repls[3].answer(answers).unwrap() else { panic!("it is over") };
    assert_eq!(output.stdout, "103\n");
}

#[test]
fn the_same_program_gives_the_same_text_in_every_process() {
    let Some(engine) = engine() else { return };
    let program = [
        "import random, time, datetime\nprint(random.random(), random.sample(range(99), 5), random.Random().random())",
        "print(time.time(), datetime.datetime.now(), datetime.date.today(), hash('a'), {'b', 'a', 'c'})",
        "def f(): pass\nclass C: pass\nprint(f, C(), launch_subagent)\nprint({str(C()) for _ in range(2)} != set())",
        "import asyncio\nprint(await asyncio.gather(*[launch_subagent(i) for i in range(9)]), time.monotonic())",
        "time.sleep(1000)\nawait asyncio.sleep(1000)\nprint(random.random(), random.gauss(0, 1))",
        "import uuid, os, secrets\nprint(uuid.uuid4(), os.urandom(4), secrets.token_hex(4), os.getpid())",
    ];
    let text = |seed| {
        let mut repl = engine.open(&[Function::asynchronous("launch_subagent")], &small(), seed).unwrap();
        program.map(|code| cell(&mut *repl, code).stdout).concat()
    };
    let first = text(5);
    assert!(first.lines().count() == 7 && first.contains("1767225600"), "{first}");
    assert_eq!(first, text(5));
    assert_ne!(first, text(6));
    // The embedded engine draws the same numbers from the same seed.
    let mut monty = Monty::new().open(&[], &small(), 5).unwrap();
    let drawn = "import random\nprint(random.random(), random.sample(range(99), 5))";
    let drawn = cell(&mut *monty, drawn).stdout;
    assert!(first.starts_with(drawn.trim_end()), "{drawn}{first}");
}

#[test]
fn asyncio_is_whole_and_waits_only_for_the_host() {
    let Some(engine) = engine() else { return };
    let mut repl = open(&engine, &small());
    let cases = [
        ("import asyncio\nt = asyncio.create_task(launch_subagent(1))\nprint(await t)", "0\n"),
        (
            "done, open = await asyncio.wait([asyncio.ensure_future(launch_subagent(i)) for i in range(3)])\n\
             print(len(done), len(open))",
            "3 0\n",
        ),
        ("print([await f for f in asyncio.as_completed([launch_subagent(i) for i in range(3)])])", "[0, 1, 2]\n"),
        ("async with asyncio.timeout(1):\n    print(await launch_subagent(1))", "0\n"),
        ("async with asyncio.TaskGroup() as g:\n    a = g.create_task(launch_subagent(1))\nprint(a.result())", "0\n"),
        ("try:\n    await asyncio.wait_for(asyncio.sleep(5), 1)\nexcept TimeoutError:\n    print('late')", "late\n"),
        (
            "t = asyncio.create_task(launch_subagent(1))\nn = 0\nwhile not t.done():\n    n += 1\n    \
             await asyncio.sleep(0.1)\nprint(n < 4, t.result())",
            "True 0\n",
        ),
        (
            "q = asyncio.Queue()\nasync def fill():\n    for i in range(2):\n        await q.put(await launch_subagent(i))\n\
             t = asyncio.create_task(fill())\nprint(await q.get(), await q.get())",
            "0 1\n",
        ),
        ("print(await asyncio.to_thread(sum, [1, 2]))", "3\n"),
        ("print(sorted([3, 1, 2], key=lambda n: echo(-n)))", "[3, 2, 1]\n"),
        (
            "async def numbers():\n    for i in range(2):\n        yield await launch_subagent(i)\n\
             print([n async for n in numbers()])",
            "[0, 1]\n",
        ),
    ];
    for (code, expected) in cases {
        let output = cell(&mut *repl, code);
        assert_eq!((output.stdout.as_str(), output.error), (expected, None), "{code}");
    }
    let own = "class Mine(MemoryError):\n    pass\nfor error in (MemoryError('mine'), Mine()):\n    try:\n        raise error\n    \
               except MemoryError as caught:\n        print(repr(caught))\n    else:\n        print('none')\n    finally:\n        \
               print('after')";
    let output = cell(&mut *repl, own);
    assert_eq!((output.stdout.as_str(), output.error), ("MemoryError('mine')\nafter\nMine()\nafter\n", None));
    let errors = [
        ("await asyncio.Event().wait()", "RuntimeError: the cell waits for something that can no longer happen"),
        ("asyncio.run(asyncio.sleep(0))", "RuntimeError: asyncio.run() cannot be called from a running event loop"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("raise KeyError('k')", "KeyError: 'k'"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("raise MemoryError('mine')", "MemoryError: mine"),
    ];
    for (code, expected) in errors {
        let text = error(&mut *repl, code);
        assert!(text.starts_with(expected), "{code}: {text}");
    }
    assert_eq!(cell(&mut *repl, "ts = [launch_subagent('a')]"), CellOutput::default());
    let text = error(&mut *repl, "ts.append(launch_subagent('b'))\nprint(await ts[0])");
    assert_eq!(
        text,
        "RuntimeError: an awaited call belongs to an earlier cell: await a call in the cell that makes it"
    );
}

#[test]
fn a_call_after_a_stack_overflow_gets_its_own_answer() {
    let Some(engine) = engine() else { return };
    let mut repl = open(&engine, &small());
    let code = "def deep(n):\n    try:\n        return deep(n + 1)\n    except RecursionError:\n        return echo(n)\n\
                def near(n):\n    try:\n        echo(-1)\n        return near(n + 1)\n    except RecursionError:\n        \
                return n\nfor i in range(3):\n    deep(0)\n    print(echo(i))";
    let output = cell(&mut *repl, code);
    assert_eq!((output.stdout.as_str(), output.error), ("0\n1\n2\n", None));
}

#[test]
fn values_too_large_or_odd_leave_as_they_do_from_the_embedded_engine() {
    let Some(engine) = engine() else { return };
    let limits = CellLimits { memory: 128 << 20, time_ms: 10_000, ..small() };
    let (mut one, mut other) =
        (Monty::new().open(&[Function::sync("echo")], &limits, 3).unwrap(), open(&engine, &limits));
    for code in [
        "x = [1]\nfor i in range(30): x = [x, x]\ntry:\n    echo(x)\nexcept ValueError as error:\n    print(error)",
        "x = []\nfor i in range(200): x = [x]\necho(x)",
        "x = []\nfor i in range(100): x = [x]\nprint(echo(x) == x)",
        "echo('a' * 5_000_000)",
        "for v in [None, True, -2**63, 2**63 - 1, 0.1, -0.0, float('inf'), float('nan'), 'é$\\n', (), (1,), [[]], \
         {'$a': 1}, {1: 2}, {'z': 1, 'a': (1, 2)}, {('k',): None}]:\n    print(repr(v), repr(echo(v)), type(echo(v)))",
        "for i in range(20): print('x' * 100_000)",
        "print(echo(10**30))",
        "x = input()",
    ] {
        assert_eq!(cell(&mut *one, code), cell(&mut *other, code), "{code}");
    }
    let subclasses = "import collections\nfor v in [collections.Counter('aab'), collections.OrderedDict(a=1), \
                      collections.namedtuple('P', 'x')(3)]:\n    print(echo(v))";
    assert_eq!(cell(&mut *other, subclasses).stdout, "{'a': 2, 'b': 1}\n{'a': 1}\n(3,)\n");
    assert!(cell(&mut *other, &"#".repeat(MAX_CODE + 1)).rejected);
}

#[test]
fn a_host_that_breaks_the_protocol_changes_nothing() {
    let Some(engine) = engine() else { return };
    let mut repl = open(&engine, &small());
    let misuse =
        |result: Result<Progress, ReplError>| assert!(matches!(result, Err(ReplError::Misuse { .. })), "{result:?}");
    let none = || ToolResult::Value(Value::None);
    misuse(repl.answer(Reply::Pending));
    let code = "import asyncio\necho(1)\nprint(await asyncio.gather(launch_subagent('a'), launch_subagent('b')))";
    assert!(matches!(repl.start(code).unwrap(), Progress::Call(_)));
    misuse(repl.start("x = 1"));
    misuse(repl.answer(Reply::Pending));
    misuse(repl.answer(Reply::Answers(vec![(0, none())])));
    assert!(matches!(repl.answer(Reply::Now(none())).unwrap(), Progress::Call(_)));
    assert!(matches!(repl.answer(Reply::Pending).unwrap(), Progress::Call(_)));
    assert_eq!(repl.answer(Reply::Pending).unwrap(), Progress::Blocked { pending: vec![1, 2] });
    misuse(repl.answer(Reply::Answers(vec![])));
    misuse(repl.answer(Reply::Answers(vec![(1, none()), (1, none())])));
    let answers = vec![(2, ToolResult::Value(Value::Int(2))), (1, ToolResult::Value(Value::Int(1)))];
    let Progress::Done(output) = repl.answer(Reply::Answers(answers)).unwrap() else { panic!("it is over") };
    assert_eq!((output.stdout.as_str(), output.error), ("[1, 2]\n", None));
    let good = repl.snapshot().unwrap();
    let foreign = Monty::new().open(&[], &small(), 1).unwrap().snapshot().unwrap();
    for bytes in [&b"nonsense"[..], &good[..20], &foreign] {
        assert!(matches!(engine.restore(&[], &small(), bytes), Err(ReplError::Snapshot { .. })));
    }
}

#[test]
fn an_interpreter_that_is_none_is_named() {
    let options = CpythonOptions { python: "no-such-python".into(), ..CpythonOptions::default() };
    let error = Cpython::new(options).unwrap_err();
    assert!(matches!(error, CpythonError::Interpreter { .. }));
    assert!(error.to_string().contains("no-such-python"), "{error}");
}

/// A `python3` that claims to be a system without any of the protections.
#[cfg(target_os = "linux")]
fn python_without_protections(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(output.stdout).unwrap();
    let python = python.trim();
    let script = dir.join("python");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = -S ]; then\n  exec {python} -S -s -B -X utf8 -c \"import sys; sys.platform = 'plan9'\n\
         exec(sys.argv[1])\" \"$7\"\nfi\nexec {python} \"$1\" \"$2\" -c \"import sys; sys.executable = '$0'\n\
         exec(sys.argv[1])\" \"$4\"\n"
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[cfg(target_os = "linux")]
#[test]
fn without_protections_cells_run_only_if_that_is_allowed() {
    if engine().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let python = python_without_protections(dir.path());
    let error = Cpython::new(CpythonOptions { python: python.clone(), ..CpythonOptions::default() }).unwrap_err();
    assert!(matches!(error, CpythonError::Unprotected { .. }), "{error}");
    let text = error.to_string();
    for part in ["resource limits on", "seccomp off (there is none on plan9)", "Landlock off", "--allow-unsandboxed"] {
        assert!(text.contains(part), "{text}");
    }
    let options = CpythonOptions { python, allow_unsandboxed: true, ..CpythonOptions::default() };
    let engine = Cpython::new(options).unwrap();
    let mut repl = open(&engine, &small());
    assert_eq!(cell(&mut *repl, "import socket\nsocket.socket().close()\nprint('open')").stdout, "open\n");
}
