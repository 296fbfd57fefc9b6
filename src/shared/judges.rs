//! Judges by name, and those of a recorded run.

use rao_engine::EngineConfig;
use rao_envs::Environment;
use rao_envs::judge::{Panel, Seat, Spec};
use rao_replay::recorded;

use super::exit::Failure;

/// The panel that flags choose for an environment; `None` for one that judges every node itself.
pub(crate) fn panel(
    env: &dyn Environment,
    root: Option<&Spec>,
    child: Option<&Spec>,
) -> Result<Option<Panel>, Failure> {
    let Some((default_root, default_child)) = env.default_judges() else {
        if root.or(child).is_some() {
            let message =
                format!("--judge and --child-judge have nothing to do: {} judges every node itself", env.name());
            return Err(Failure::usage(message).help("leave them out"));
        }
        return Ok(None);
    };
    let given = |spec: Option<&Spec>, default: &str| match spec {
        Some(spec) => Ok(spec.clone()),
        None => default.parse().map_err(|error: rao_envs::judge::SpecError| Failure::usage(error.to_string())),
    };
    let root = match seat(&given(root, default_root)?)? {
        Seat::Judge(judge) => judge,
        Seat::Root => {
            let failure = Failure::usage("--judge root: the root's success cannot be its own measure");
            return Err(failure.help("choose another judge of roots; `root` is for --child-judge"));
        }
    };
    Ok(Some(Panel::new(root, seat(&given(child, default_child)?)?)))
}

fn seat(spec: &Spec) -> Result<Seat, Failure> {
    match spec.computed() {
        Some(seat) => Ok(seat),
        None => Err(Failure::usage(format!("judge `{spec}` cannot be opened by this program"))
            .help("choose exact, f1:THRESHOLD or, for children, root")),
    }
}

/// The panel of a recorded run, to go on with it.
pub(crate) fn recorded(config: &EngineConfig) -> Result<Panel, Failure> {
    Ok(recorded::panel(config)?)
}
