//! The processes of the CPython engine: sessions are forks of one server, share nothing, and leave nothing behind. What
//! the system says of them is read from `/proc`. Where there is no usable `python3`, or the machine allows no sandbox, the
//! tests say that they are skipped.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rao_engine::repl::{
    CellLimits, CellOutput, Cpython, CpythonOptions, Function, Limit, Progress, Repl, ReplEngine, Reply,
};
use rao_envs::{ToolResult, Value};
use rao_testkit::{finish_cell, run_cell as cell};

fn engine() -> Option<Cpython> {
    match Cpython::new(CpythonOptions::default()) {
        Ok(engine) => Some(engine),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn open(engine: &Cpython) -> Box<dyn Repl> {
    let limits = CellLimits { time_ms: 20_000, memory: 32 << 20, ..CellLimits::default() };
    engine.open(&[Function::sync("echo"), Function::asynchronous("launch_subagent")], &limits, 3).unwrap()
}

fn shown(repl: &mut dyn Repl, code: &str) -> String {
    let output = cell(repl, code);
    assert_eq!(output.error, None, "{code}");
    output.stdout
}

// ---------------------------------------------------------------------------------------------- what the system knows

/// State and parent of a process; `None` if there is none.
fn process(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn runs(pid: u32) -> bool {
    process(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Processes with this parent, zombies among them.
fn children(parent: u32) -> BTreeSet<u32> {
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    all.filter(|pid| process(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// The server of an engine's sessions, and the template that it forks them from.
fn server(engine: &Cpython) -> (u32, u32) {
    let sessions: BTreeSet<u32> = engine.processes().into_iter().filter(|session| runs(*session)).collect();
    let server = process(*sessions.first().unwrap()).unwrap().1;
    assert!(sessions.iter().all(|session| process(*session).unwrap().1 == server), "one parent for all");
    let others: Vec<u32> = children(server).difference(&sessions).copied().collect();
    assert_eq!(others.len(), 1, "the template beside the sessions");
    (server, others[0])
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Waits until none of these processes runs; zombies are their parent's affair.
fn all_end(pids: &[u32]) {
    let start = Instant::now();
    while pids.iter().any(|pid| runs(*pid)) {
        assert!(start.elapsed() < Duration::from_secs(5), "{pids:?} live on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// --------------------------------------------------------------------------------------------------------------- tests

#[test]
fn what_a_session_changes_shows_in_no_other() {
    let Some(engine) = engine() else { return };
    let probe = "import json, math, os, sys, random, builtins, asyncio, linecache\n\
                 print(json.dumps([1]), math.pi, abs(-5), os.environ.get('MINE'), 'mine' in sys.modules, \
                 sys.getrecursionlimit(), random.random(), len([n for n in linecache.cache if n.startswith('<cell')]), \
                 repr(asyncio.sleep), hasattr(builtins, 'mine'), os.getcwd(), 'mine' in sys.path";
    let mut before = open(&engine);
    let expected = shown(&mut *before, &format!("{probe})"));
    let mut other = open(&engine);
    // The last is memory of the interpreter itself: the object that every 211 is.
    let spoil = "import json, math, os, sys, random, builtins, types, ctypes\njson.dumps = lambda value: 'mine'\n\
                 math.pi = 3\nbuiltins.mine = 1\nbuiltins.abs = lambda value: 7\nos.environ['MINE'] = '1'\n\
                 sys.modules['mine'] = types.ModuleType('mine')\nsys.setrecursionlimit(500)\nrandom.seed(9)\n\
                 asyncio.sleep = None\nsys.path.append('mine')\n\
                 ctypes.memset(id(211) + 24, 210, 1)\nprint(211)";
    assert_eq!(shown(&mut *other, spoil), "210\n");
    assert_ne!(shown(&mut *other, &format!("{probe}, 105 + 106)")), format!("{} 211\n", expected.trim_end()));
    for repl in [&mut before, &mut open(&engine)] {
        let again = shown(&mut **repl, &format!("import random\nrandom.seed(3)\n{probe}, 105 + 106)"));
        let parts = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let (again, expected) = (parts(&again), parts(&expected));
        for (at, (again, expected)) in again.iter().zip(&expected).enumerate() {
            // The number drawn and the count of cells differ in the session that runs the probe again.
            assert!(again.trim_end() == expected.trim_end() || [6, 7].contains(&at), "{at}: {again} and {expected}");
        }
        assert_eq!(again.last().unwrap(), "211\n");
    }
    // What another session holds is not charged to a new one, which has the whole of its own limit.
    assert_eq!(cell(&mut *other, "kept = 'a' * 20_000_000"), CellOutput::default());
    let mut fresh = open(&engine);
    assert_eq!(cell(&mut *fresh, "kept = 'a' * 20_000_000"), CellOutput::default());
    assert_eq!(cell(&mut *fresh, "more = 'a' * 20_000_000").limit, Some(Limit::Memory));
    assert_eq!(shown(&mut *fresh, "print(len(kept))"), "20000000\n");
}

#[test]
fn a_session_has_its_own_connection_and_cannot_leave_its_server() {
    let Some(engine) = engine() else { return };
    let mut sessions: Vec<_> = (0..3).map(|_| open(&engine)).collect();
    for repl in &mut sessions {
        let code = "import os\nfound = []\nfor n in range(300):\n    try:\n        os.fstat(n)\n        found.append(n)\n    \
                    except OSError:\n        pass\nprint(found)";
        assert_eq!(shown(&mut **repl, code), "[0, 1, 2, 3]\n");
        let stay = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.prctl(1, 0, 0, 0, 0), \
                    ctypes.get_errno())";
        assert_eq!(shown(&mut **repl, stay), "-1 1\n");
    }
    assert_eq!(engine.processes().len(), 3);
}

/// Addresses of objects of many kinds, and an order that rests on them.
const ADDRESSES: &str = "import json, collections, dataclasses\nclass A:\n    pass\n@dataclasses.dataclass\nclass B:\n    \
                         x: int\nmade = [object(), [], {}, set(), 'ab' * 20, b'1' * 33, 1.5, 12345678, lambda: 0, A, A(), \
                         B(1), json, (1, made) if 'made' in vars() else (1, 2), bytearray(100_000)]\n\
                         print([hex(id(one)) for one in made], [made.index(one) for one in {*made[8:11]}])";

#[test]
fn addresses_do_not_tell_what_other_sessions_did() {
    let fixed = Command::new("setarch").args(["-R", "true"]).status().is_ok_and(|status| status.success());
    if !fixed {
        println!("skipped: addresses are not fixed here");
        return;
    }
    let Some(one) = engine() else { return };
    let Some(two) = engine() else { return };
    let expected = shown(&mut *open(&one), ADDRESSES);
    let mut kept = Vec::new();
    for round in 0..40_u32 {
        let mut repl = open(if round % 5 == 4 { &two } else { &one });
        assert_eq!(shown(&mut *repl, ADDRESSES), expected, "session {round}");
        match round % 4 {
            0 => kept.push(repl),
            1 => drop(kept.pop()),
            2 => assert_eq!(cell(&mut *repl, "import os\nos._exit(3)").limit, Some(Limit::Memory)),
            _ => {}
        }
    }
}

#[test]
fn a_killed_server_comes_back_with_every_session() {
    let Some(engine) = engine() else { return };
    let (mut idle, mut calls, mut waits) = (open(&engine), open(&engine), open(&engine));
    assert_eq!(shown(&mut *idle, "x = echo(1)\nprint(x)"), "1\n");
    let called = calls.start("print('a')\nprint(echo(2))").unwrap();
    let launched = waits.start("print(await launch_subagent('b') + echo(3))").unwrap();
    assert!(matches!(launched, Progress::Call(_)));
    let blocked = waits.answer(Reply::Pending).unwrap();
    for round in 0..2 {
        let (server, template) = server(&engine);
        let processes = engine.processes();
        // Without its template a server is of no use, and ends as well.
        kill(if round == 0 { server } else { template });
        all_end(&[&processes[..], &[server, template]].concat());
        assert_eq!(shown(&mut *idle, "x += 1\nprint(x)"), format!("{}\n", round + 2));
        assert_ne!(self::server(&engine).0, server);
    }
    assert_eq!(finish_cell(&mut *calls, called).stdout, "a\n2\n");
    assert_eq!(finish_cell(&mut *waits, blocked).stdout, "3\n");
    assert_eq!(children(server(&engine).0).len(), 4);
}

/// Opens, uses and ends sessions in every way that there is.
fn churn(engine: &Cpython, count: usize) {
    for number in 0..count {
        let mut repl = open(engine);
        match number % 4 {
            // Dropped in the middle of a cell, after one that ended its process or lost its connection, and between cells.
            1 => assert!(matches!(repl.start("echo(1)").unwrap(), Progress::Call(_))),
            2 if number % 20 == 2 => {
                assert_eq!(cell(&mut *repl, "import os\nos._exit(3)").limit, Some(Limit::Memory));
            }
            2 if number % 20 == 6 => {
                assert_eq!(cell(&mut *repl, "import os\nos.close(3)").limit, Some(Limit::Memory));
            }
            _ => assert_eq!(shown(&mut *repl, "print(1)"), "1\n"),
        }
    }
}

fn many(count: usize) {
    let Some(engine) = engine() else { return };
    let mut kept = open(&engine);
    assert_eq!(shown(&mut *kept, "x = 1\nprint(x)"), "1\n");
    let (server, template) = server(&engine);
    let before = (descriptors(server), descriptors(template));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| churn(&engine, count / 2));
        }
    });
    assert_eq!(self::server(&engine), (server, template), "nothing but the session that is kept");
    assert_eq!(children(template), BTreeSet::new());
    assert_eq!((descriptors(server), descriptors(template)), before);
    assert_eq!(shown(&mut *kept, "print(x)"), "1\n");
    let left = [engine.processes(), vec![server, template]].concat();
    drop((kept, engine));
    for pid in left {
        assert_eq!(process(pid), None, "{pid} is left");
    }
}

#[test]
fn hundreds_of_short_sessions_leave_nothing_behind() {
    many(400);
}

#[test]
#[ignore = "a minute; the test above is its short form"]
fn thousands_of_short_sessions_leave_nothing_behind() {
    many(6_000);
}

/// Set for the process that the test below kills.
const HOST: &str = "RAO_LOG_TEST_HOST";

/// A host with an idle session, one that waits for an answer, and one in an endless loop. It runs until it is killed.
#[test]
fn a_host_to_be_killed() {
    if std::env::var_os(HOST).is_none() {
        return;
    }
    let engine = engine().unwrap();
    let (mut idle, mut waits, mut loops) = (open(&engine), open(&engine), open(&engine));
    assert_eq!(shown(&mut *idle, "x = 1\nprint(x)"), "1\n");
    assert!(matches!(waits.start("echo(1)").unwrap(), Progress::Call(_)));
    assert!(matches!(loops.start("echo(1)\nwhile True:\n    pass").unwrap(), Progress::Call(_)));
    let (server, template) = server(&engine);
    let all = [engine.processes(), vec![server, template]].concat();
    for pid in &all {
        // What the shell left open is not handed on.
        let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
        assert!(links.filter_map(|link| fs::read_link(link).ok()).all(|file| file != Path::new("/dev/zero")), "{pid}");
    }
    println!("\nprocesses {all:?}");
    let _ = loops.answer(Reply::Now(ToolResult::Value(Value::None)));
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_host_leaves_no_process() {
    if engine().is_none() {
        return;
    }
    for whole in [true, false] {
        let mut host = Command::new("sh")
            .args(["-c", "exec 9</dev/zero; exec \"$0\" --exact a_host_to_be_killed --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .env(HOST, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| line.unwrap().strip_prefix("processes ").map(str::to_owned)).unwrap();
        let processes: Vec<u32> = serde_json::from_str(&line).unwrap();
        assert_eq!(processes.len(), 5);
        if !whole {
            // The server cannot clear up when it goes first.
            kill(processes[3]);
        }
        host.kill().unwrap();
        host.wait().unwrap();
        all_end(&processes);
    }
}

// ------------------------------------------------------------------------------------------------------------- figures

/// Processor time of a process and of the children that it waited for, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    fields.skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum()
}

fn memory(pid: u32, what: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "prints figures for docs/guide/python.md"]
fn figures() {
    let Some(engine) = engine() else { return };
    let mut kept = open(&engine);
    assert_eq!(shown(&mut *kept, "print(1)"), "1\n");
    let (server, template) = server(&engine);
    let (count, before) = (400, ticks(server) + ticks(template) + ticks(std::process::id()));
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let mut repl = open(&engine);
        assert_eq!(shown(&mut *repl, "print(1)"), "1\n");
        times.push(start.elapsed());
    }
    let spent = ticks(server) + ticks(template) + ticks(std::process::id()) - before;
    times.sort();
    println!("a session with one cell: median {:?}, slowest {:?}", times[count / 2], times[count - 1]);
    println!("processor time, its end included: {} ms", spent as f64 * 10.0 / count as f64);
    let mut live: Vec<_> = (0..100).map(|_| open(&engine)).collect();
    for repl in &mut live {
        assert_eq!(shown(&mut **repl, "print(1)"), "1\n");
    }
    let sessions = engine.processes();
    let sum = |pids: &[u32], what: &str| pids.iter().map(|pid| memory(*pid, what)).sum::<u64>();
    let each = sum(&sessions, "Pss:") as f64 / sessions.len() as f64 / 1024.0;
    println!("{} sessions: {each:.2} MiB each (PSS)", sessions.len());
    println!("server and template: {:.2} MiB (PSS)", sum(&[server, template], "Pss:") as f64 / 1024.0);
}
