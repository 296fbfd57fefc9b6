//! What someone new to the program would otherwise have to conclude from the results.

use super::args::{EngineArgs, EnvName, PolicyArgs, PolicyName, TaskArgs};
use super::out::note;
use super::recording::Setup;

/// Notes on a recording that was asked for, before it starts.
pub(crate) fn before(tasks: &TaskArgs, engine: &EngineArgs, policy: &PolicyArgs, setup: &Setup) {
    let env = tasks.env.name();
    let is_mini = matches!(policy.policy, None | Some(PolicyName::Mini)) && policy.adapter.is_none();
    if is_mini && tasks.env != EnvName::Textcraft {
        note(format_args!(
            "note: mini was trained in textcraft and knows nothing of {env}, so its actions will fail; `--policy oracle` \
             solves its tasks"
        ));
    }
    let (own, context) = (setup.plan.env.defaults(&tasks.preset).context, setup.plan.config.context);
    if engine.context.is_none() && context < own {
        note(format_args!("note: contexts end at the model's {context} tokens; {env}'s own windows are of {own}"));
    }
}
