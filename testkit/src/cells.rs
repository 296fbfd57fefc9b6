//! Running cells of an interpreter without a rollout.

use rao_engine::repl::{CellOutput, Progress, Repl, Reply};
use rao_envs::{ToolResult, Value};

/// Runs a cell: sync calls give their first argument back, async ones their number.
pub fn run_cell(repl: &mut dyn Repl, code: &str) -> CellOutput {
    let progress = repl.start(code).unwrap();
    finish_cell(repl, progress)
}

/// Goes on with a cell that has begun, as [`run_cell`] does.
pub fn finish_cell(repl: &mut dyn Repl, mut progress: Progress) -> CellOutput {
    loop {
        let reply = match progress {
            Progress::Done(output) => return output,
            Progress::Call(call) if call.is_async => Reply::Pending,
            Progress::Call(call) => {
                Reply::Now(ToolResult::Value(call.args.args.into_iter().next().unwrap_or(Value::None)))
            }
            Progress::Blocked { pending } => {
                let answer = |call: u32| (call, ToolResult::Value(Value::Int(i64::from(call))));
                Reply::Answers(pending.into_iter().map(answer).collect())
            }
        };
        progress = repl.answer(reply).unwrap();
    }
}
