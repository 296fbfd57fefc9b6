//! Hostile cells on the embedded engine: a limit ends the cell and neither the session nor the program.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use rao_engine::repl::{
    CellLimits, CellOutput, Function, Limit, MAX_CODE, Monty, Progress, Repl, ReplEngine, ReplError, Reply,
    on_host_thread, on_interpreter_thread,
};
use rao_envs::{ToolResult, Value};
use rao_testkit::run_cell as cell;

fn functions() -> Vec<Function> {
    vec![Function::sync("echo"), Function::asynchronous("launch_subagent")]
}

fn small() -> CellLimits {
    CellLimits { time_ms: 200, memory: 8 << 20, ..CellLimits::default() }
}

fn open(limits: &CellLimits) -> Box<dyn Repl> {
    Monty::new().open(&functions(), limits, 3).unwrap()
}

fn error(repl: &mut dyn Repl, code: &str) -> String {
    let output = cell(repl, code);
    assert!(output.limit.is_none() && !output.rejected, "{code}: {output:?}");
    output.error.unwrap_or_else(|| panic!("{code} raises nothing"))
}

#[test]
fn a_limit_ends_the_cell_and_gives_back_the_session_before_it() {
    let hostile = [
        (Limit::Time, "kept = 2\nwhile True:\n    pass"),
        (
            Limit::Time,
            "kept = 2\nwhile True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        ),
        (Limit::Memory, "kept = 2\nx = []\nwhile True:\n    x.append('a' * 1000)"),
        (Limit::Memory, "kept = 2\nx = 'a' * 10**10"),
        (Limit::Memory, "kept = 2\nx = 10 ** 10**8"),
        (Limit::Memory, "kept = 2\nx = list(range(10**12))"),
        (Limit::Memory, "kept = 2\nx = sorted(range(10**8))"),
        (Limit::Calls, "kept = 2\nfor i in range(1001):\n    echo(i)"),
        (Limit::Calls, "kept = 2\ntry:\n    for i in range(1001):\n        echo(i)\nexcept BaseException:\n    pass"),
    ];
    let mut repl = open(&small());
    assert_eq!(cell(&mut *repl, "kept = 1\nbig = 'b' * 1_000_000"), CellOutput::default());
    for (limit, code) in hostile {
        let start = Instant::now();
        let output = cell(&mut *repl, &format!("print('begun')\n{code}"));
        assert_eq!((output.limit, output.stdout.as_str()), (Some(limit), "begun\n"), "{code}: {output:?}");
        assert!(output.error.is_some_and(|text| text.contains("was stopped")), "{code}");
        assert!(start.elapsed() < Duration::from_secs(5), "{code} took {:?}", start.elapsed());
        assert_eq!(cell(&mut *repl, "print(kept, len(big))").stdout, "1 1000000\n", "after {code}");
    }
}

#[test]
fn a_limit_in_the_first_cell_gives_back_a_fresh_session() {
    let mut repl = open(&small());
    assert_eq!(cell(&mut *repl, "x = 1\nwhile True: pass").limit, Some(Limit::Time));
    assert_eq!(error(&mut *repl, "x"), "NameError: name 'x' is not defined");
    assert_eq!(cell(&mut *repl, "print(round(2.675, 2))").stdout, "2.67\n");
}

#[test]
fn exactly_the_allowed_calls_are_made() {
    let mut repl = open(&CellLimits { calls: 3, ..small() });
    assert_eq!(cell(&mut *repl, "for i in range(3): echo(i)"), CellOutput::default());
    assert_eq!(cell(&mut *repl, "for i in range(4): echo(i)").limit, Some(Limit::Calls));
}

#[test]
fn what_does_not_exist_says_so() {
    let mut repl = open(&small());
    let cases = [
        ("open('/etc/passwd')", "PermissionError: Permission denied: '/etc/passwd'"),
        ("import socket", "ModuleNotFoundError: No module named 'socket'"),
        ("import os\nos.system('ls')", "AttributeError: module 'os' has no attribute 'system'"),
        ("import os\nprint(os.environ)", "RuntimeError: 'os.environ' is not supported in this environment"),
        ("exit()", "NameError: name 'exit' is not defined"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("raise KeyError('k')", "KeyError: 'k'"),
        ("import asyncio\nasyncio.run(3)", "RuntimeError: asyncio.run() cannot be called from a running event loop"),
    ];
    for (code, expected) in cases {
        assert_eq!(error(&mut *repl, code), expected);
    }
    let nested = format!("{}{}", "(".repeat(20_000), ")".repeat(20_000));
    assert!(error(&mut *repl, &nested).starts_with("SyntaxError"));
    let chain = format!("x = 1{}", "+1".repeat(30_000));
    assert!(cell(&mut *repl, &chain).limit.is_none());
    assert!(cell(&mut *repl, &"#".repeat(MAX_CODE + 1)).rejected);
    assert_eq!(cell(&mut *repl, "print('alive')").stdout, "alive\n");
}

#[test]
fn long_output_is_cut_and_costs_no_memory() {
    let mut repl = open(&small());
    let output = cell(&mut *repl, "for i in range(20): print('x' * 1_000_000)");
    assert_eq!(output.error, None);
    let head = "x".repeat(7_500);
    let tail = "x".repeat(2_499);
    assert_eq!(output.stdout, format!("{head}\n[... 19990020 characters left out ...]\n{tail}\n"));
}

#[test]
fn every_session_is_charged_for_itself() {
    let limits = small();
    let mut repls: Vec<_> = (0..4).map(|_| open(&limits)).collect();
    for repl in &mut repls {
        assert_eq!(cell(&mut **repl, "a = 'a' * 5_000_000"), CellOutput::default());
    }
    assert_eq!(cell(&mut *repls[1], "b = 'b' * 5_000_000").limit, Some(Limit::Memory));
    for repl in &mut repls {
        assert_eq!(cell(&mut **repl, "a = None\nc = 'c' * 5_000_000\nprint(len(c))").stdout, "5000000\n");
    }
    let bytes = repls[0].snapshot().unwrap();
    let mut restored = Monty::new().restore(&functions(), &limits, &bytes).unwrap();
    assert_eq!(cell(&mut *restored, "d = 'd' * 5_000_000").limit, Some(Limit::Memory));
    assert_eq!(cell(&mut *restored, "print(len(c))").stdout, "5000000\n");
}

#[test]
fn memory_that_comes_and_goes_leaves_no_charge() {
    let mut repl = open(&small());
    for _ in 0..20 {
        for code in [
            "print(len('a' * 4_000_000))",
            "print('p' * 4_000_000)",
            "x = echo('e' * 4_000_000)\nx = None",
            "import asyncio\ny = [echo(i) for i in range(300)]\ny = None",
        ] {
            let output = cell(&mut *repl, code);
            assert_eq!((output.error, output.limit), (None, None), "{code}");
        }
        assert!(error(&mut *repl, "raise ValueError('v' * 3_000_000)").len() > 3_000_000);
    }
    assert_eq!(cell(&mut *repl, "z = 'z' * 7_500_000"), CellOutput::default());
    assert_eq!(cell(&mut *repl, "y = 'y' * 900_000").limit, Some(Limit::Memory));
}

#[test]
fn values_too_large_to_leave_are_refused_in_the_cell() {
    let mut repl = open(&CellLimits { memory: 64 << 20, ..small() });
    let shared =
        "x = [1]\nfor i in range(30): x = [x, x]\ntry:\n    echo(x)\nexcept ValueError as error:\n    print(error)";
    let text = cell(&mut *repl, shared).stdout;
    assert!(text.starts_with("the arguments of echo() are too large to leave the REPL: more than 100,000"), "{text}");
    let deep = "x = []\nfor i in range(200): x = [x]\necho(x)";
    assert!(error(&mut *repl, deep).ends_with("nested too deeply"));
    assert!(error(&mut *repl, "echo('a' * 5_000_000)").ends_with("more than 4 MiB of text"));
    let odd = "s = (1,)\nfor i in range(30): s = (s, s)\nprint(len(echo({s})) < 10_100)";
    assert_eq!(cell(&mut *repl, odd).stdout, "True\n");
}

#[test]
fn a_host_that_breaks_the_protocol_changes_nothing() {
    let mut repl = open(&small());
    let misuse =
        |result: Result<Progress, ReplError>| assert!(matches!(result, Err(ReplError::Misuse { .. })), "{result:?}");
    let none = || ToolResult::Value(Value::None);
    misuse(repl.answer(Reply::Pending));
    let code = "import asyncio\necho(1)\nprint(await asyncio.gather(launch_subagent('a'), launch_subagent('b')))";
    assert!(matches!(repl.start(code).unwrap(), Progress::Call(_)));
    misuse(repl.start("x = 1"));
    misuse(repl.answer(Reply::Pending));
    misuse(repl.answer(Reply::Answers(vec![(0, none())])));
    let Progress::Call(call) = repl.answer(Reply::Now(none())).unwrap() else { panic!("the cell launches") };
    assert_eq!((call.call, call.is_async), (1, true));
    misuse(repl.answer(Reply::Now(none())));
    assert!(matches!(repl.answer(Reply::Pending).unwrap(), Progress::Call(_)));
    assert_eq!(repl.answer(Reply::Pending).unwrap(), Progress::Blocked { pending: vec![1, 2] });
    misuse(repl.answer(Reply::Answers(vec![])));
    misuse(repl.answer(Reply::Answers(vec![(0, none())])));
    misuse(repl.answer(Reply::Answers(vec![(1, none()), (1, none())])));
    let answers = vec![(2, ToolResult::Value(Value::Int(2))), (1, ToolResult::Value(Value::Int(1)))];
    let Progress::Done(output) = repl.answer(Reply::Answers(answers)).unwrap() else { panic!("it is over") };
    assert_eq!((output.stdout.as_str(), output.error), ("[1, 2]\n", None));
}

#[test]
fn a_snapshot_of_something_else_is_refused() {
    let mut repl = open(&small());
    let good = repl.snapshot().unwrap();
    let identity = Monty::new().identity();
    let at = good.windows(identity.len()).position(|window| window == identity.as_bytes()).unwrap();
    let mut other = good.clone();
    other[at + identity.len() - 1] ^= 1;
    for bytes in [&b"nonsense"[..], &good[..20], &other] {
        let result = Monty::new().restore(&functions(), &small(), bytes);
        assert!(matches!(result, Err(ReplError::Snapshot { .. })));
    }
}

#[test]
fn an_awaitable_of_an_earlier_cell_is_refused_by_name() {
    let mut repl = open(&small());
    assert_eq!(cell(&mut *repl, "ts = [launch_subagent('a')]"), CellOutput::default());
    let text = error(&mut *repl, "ts.append(launch_subagent('b'))\nprint(await ts[0])");
    assert_eq!(
        text,
        "RuntimeError: an awaited call belongs to an earlier cell: await a call in the cell that makes it"
    );
}

#[test]
fn the_same_program_gives_the_same_text() {
    let program = [
        "import random, time, datetime\nprint(random.random(), random.sample(range(99), 5))",
        "print(time.time(), datetime.datetime.now(), hash('a'), {'b', 'a', 'c'})",
        "def f(): pass\nclass C: pass\nprint(f, C(), id(f), launch_subagent)",
        "import asyncio\nprint(await asyncio.gather(*[launch_subagent(i) for i in range(9)]), time.monotonic())",
        "time.sleep(1000)\nawait asyncio.sleep(1000)\nprint(random.random(), random.gauss(0, 1))",
    ];
    let text = move |seed| {
        let mut repl = Monty::new().open(&functions(), &small(), seed).unwrap();
        program.map(|code| cell(&mut *repl, code).stdout).concat()
    };
    let first = text(5);
    assert!(first.lines().count() == 5 && first.contains("1767225600"), "{first}");
    assert_eq!(first, text(5));
    assert_eq!(first, on_interpreter_thread(move || text(5)).unwrap());
    assert_eq!(first, on_host_thread(|| text(5)));
    assert_ne!(first, text(6));
}

#[test]
fn threads_that_step_by_themselves_take_turns_and_are_charged_apart() {
    // Two sessions of 6 MiB each fit a limit of 8 MiB; counted together they would not.
    let greedy = || {
        let mut repl = open(&small());
        let code = "x = []\nfor i in range(600):\n    x.append('a' * 10000 + str(i))\n    echo(i)\nprint(len(x))";
        cell(&mut *repl, code)
    };
    let outputs: Vec<CellOutput> = std::thread::scope(|scope| {
        let hosts: Vec<_> = (0..3).map(|_| scope.spawn(|| on_host_thread(greedy))).collect();
        let others: Vec<_> = (0..2).map(|_| scope.spawn(greedy)).collect();
        hosts.into_iter().chain(others).map(|thread| thread.join().unwrap()).collect()
    });
    for output in outputs {
        assert_eq!((output.stdout.as_str(), output.limit, output.error), ("600\n", None, None));
    }
    let panic = std::panic::catch_unwind(|| on_host_thread(|| panic!("the host's own")));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the host's own"));
}

#[test]
fn the_prelude_rounds_and_gathers_as_python_does() {
    let mut repl = open(&small());
    let rounded = "print(round(2.675, 2), round(2.5), round(-2.5), round(1250.0, -2), round(1350.0, -2), \
                   round(-1250.5, -2), round(15, -1), round(True), round(-0.001, 2), round(5e-324, 330), \
                   round(1e308, -308), round(6.0, -1), round(number=1.25, ndigits=1), round(1e16, 2))";
    let expected = "2.67 2 -2 1200.0 1400.0 -1300.0 20 1 -0.0 5e-324 1e+308 10.0 1.2 1e+16\n";
    assert_eq!(cell(&mut *repl, rounded).stdout, expected);
    let gathered = "async def fails(): raise ValueError('no')\n\
                    print(await asyncio.gather(launch_subagent(0), fails(), return_exceptions=True))";
    assert_eq!(cell(&mut *repl, gathered).stdout, "[0, ValueError('no')]\n");
    for (code, expected) in [
        (
            "await asyncio.wait_for(launch_subagent(0), 1)",
            "NotImplementedError: asyncio.wait_for is not supported here",
        ),
        (
            "async def go(): pass\nawait asyncio.create_task(go())",
            "NotImplementedError: asyncio.create_task takes only",
        ),
        ("round(1.5, 2.5)", "TypeError: "),
    ] {
        let text = error(&mut *repl, code);
        assert!(text.starts_with(expected), "{code}: {text}");
    }
}
