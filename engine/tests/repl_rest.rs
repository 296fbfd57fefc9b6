//! Sessions that rest, and long texts on their way through a session.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rao_engine::repl::{CellLimits, CellOutput, Function, Limit, Monty, Progress, Repl, ReplEngine, Reply};
use rao_envs::{Text, ToolResult, Value};

fn functions() -> Vec<Function> {
    vec![Function::sync("echo"), Function::asynchronous("launch")]
}

fn limits() -> CellLimits {
    CellLimits { time_ms: 60_000, ..CellLimits::default() }
}

fn text() -> Text {
    Text::from((0..600_000).map(|n| format!("{n} h\u{e9}\n")).collect::<String>())
}

fn open(limits: &CellLimits) -> Box<dyn Repl> {
    let mut repl = Monty::new().open(&functions(), limits, 3).unwrap();
    repl.define("context", text()).unwrap();
    repl
}

/// Runs a cell; each call is answered with the length of its first argument. `rests` puts the session away at every stop.
fn run(repl: &mut dyn Repl, code: &str, rests: bool) -> CellOutput {
    let (mut lengths, mut progress) = (Vec::new(), repl.start(code).unwrap());
    loop {
        if rests {
            repl.rest().unwrap();
            assert_eq!(repl.held(), 0);
        }
        let reply = match progress {
            Progress::Done(output) => return output,
            Progress::Blocked { pending } => {
                let answers =
                    pending.iter().map(|call| (*call, ToolResult::Value(Value::Int(lengths[*call as usize]))));
                Reply::Answers(answers.collect())
            }
            Progress::Call(call) => {
                let length = call.args.args[0].as_str().map_or(-1, |text| text.len() as i64);
                lengths.push(length);
                if call.is_async { Reply::Pending } else { Reply::Now(ToolResult::Value(Value::Int(length))) }
            }
        };
        progress = repl.answer(reply).unwrap();
    }
}

const CELLS: [&str; 6] = [
    "import random\nrandom.seed(5)\nhead = context[:200_000]\nprint(random.random(), len(head), hash(head))",
    "parts = [context[at:at + 900_000] for at in range(0, len(context), 900_000)]\nprint(len(parts))",
    "print(await asyncio.gather(*[launch(part) for part in parts]), random.random())",
    "print(echo(head), echo('x' * 100_000), parts[1] == context[900_000:1_800_000])",
    "context = 'mine'\nprint(context, ''.join(parts)[:20] == head[:20])",
    "print(context, len(parts[0]), random.random(), sum(len(part) for part in parts))",
];

#[test]
fn a_session_that_rests_goes_on_as_one_that_does_not() {
    let (mut awake, mut rested) = (open(&limits()), open(&limits()));
    for code in CELLS {
        let expected = run(&mut *awake, code, false);
        assert_eq!(expected.error, None, "{code}");
        assert_eq!(run(&mut *rested, code, true), expected, "{code}");
    }
    // A resting session can be saved, too.
    let bytes = rested.snapshot().unwrap();
    let mut restored = Monty::new().restore(&functions(), &limits(), &bytes).unwrap();
    let cell = "print(context, len(parts), random.random())";
    assert_eq!(run(&mut *restored, cell, true), run(&mut *awake, cell, false));
}

#[test]
fn a_session_is_charged_after_its_rest_and_goes_back_to_before_the_cell() {
    let mut repl = open(&CellLimits { memory: 24 << 20, ..limits() });
    assert_eq!(run(&mut *repl, "a = 'a' * 5_000_000\nb = 1", true), CellOutput::default());
    let broken = run(&mut *repl, "b = 2\nc = context + context\nd = echo(c[:100])\ne = 'e' * 16_000_000", true);
    assert_eq!(broken.limit, Some(Limit::Memory));
    let output = run(&mut *repl, "print(b, len(a), len(context))", true);
    assert_eq!(output.stdout, format!("1 5000000 {}\n", text().chars().count()));
}

#[test]
fn pieces_of_the_hosts_text_leave_without_limit_and_other_texts_do_not() {
    let mut repl = open(&limits());
    let length = text().len();
    assert!(length > 4 << 20);
    assert_eq!(run(&mut *repl, "print(await launch(context))", false).stdout, format!("{length}\n"));
    let (other, sync) = ("await launch('x' + context)", "echo(context)");
    for code in [other, sync] {
        let error = run(&mut *repl, code, false).error.unwrap();
        assert!(error.ends_with("more than 4 MiB of text"), "{code}: {error}");
    }
}

#[test]
fn long_strings_that_several_arguments_share_arrive_in_each() {
    let mut repl = open(&limits());
    let code = "s = 's' * 100_000\nt = 't' * 70_000\necho(s, s, u=[t], v=t, **{s: 1})";
    let Progress::Call(call) = repl.start(code).unwrap() else { panic!("the cell calls echo") };
    let (s, t) = (Value::str("s".repeat(100_000)), Value::str("t".repeat(70_000)));
    assert_eq!(call.args.args, [s.clone(), s.clone()]);
    let named = [("u", Value::List(vec![t.clone()])), ("v", t), (s.as_str().unwrap(), Value::Int(1))];
    assert_eq!(call.args.kwargs, named.map(|(name, value)| (name.to_owned(), value)));
    let code = "s = 's' * 100_000\necho(s, s, v='v' * 90_000, **{s: s})";
    let mut repl = open(&limits());
    let Progress::Call(call) = repl.start(code).unwrap() else { panic!("the cell calls echo") };
    assert_eq!(call.args.args, [s.clone(), s.clone()]);
    let v = Value::str("v".repeat(90_000));
    assert_eq!(call.args.kwargs, [("v".to_owned(), v), (s.as_str().unwrap().to_owned(), s.clone())]);
}
