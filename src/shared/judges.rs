//! Judges by name, and those of a recorded run.

use std::path::Path;
use std::sync::Arc;

use rao_engine::EngineConfig;
use rao_envs::Environment;
use rao_envs::judge::{Panel, Recorded, Role, Seat, Spec};
use rao_replay::rejudge::recorded_judges;
use rao_replay::{recorded, regression};

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
    let root = match seat(&given(root, default_root)?, Role::Root)? {
        Seat::Judge(judge) => judge,
        Seat::Root => {
            let failure = Failure::usage("--judge root: the root's success cannot be its own measure");
            return Err(failure.help("choose another judge of roots; `root` is for --child-judge"));
        }
    };
    Ok(Some(Panel::new(root, seat(&given(child, default_child)?, Role::Child)?)))
}

fn seat(spec: &Spec, role: Role) -> Result<Seat, Failure> {
    match (spec.computed(), spec) {
        (Some(seat), _) => Ok(seat),
        (None, Spec::Recorded(log)) => Ok(Seat::Judge(Arc::new(on_record(log, role)?))),
        (None, _) => Err(Failure::usage(format!("judge `{spec}` cannot be opened by this program"))
            .help("choose exact, f1:THRESHOLD or, for children, root")),
    }
}

/// The judge whose verdicts a log or an archive has.
fn on_record(log: &Path, role: Role) -> Result<Recorded, Failure> {
    let source = regression::open(log)?;
    let mut found = recorded_judges(&*source, role)?;
    let (whom, flag) = match role {
        Role::Root => ("roots", "--judge"),
        Role::Child => ("children", "--child-judge"),
    };
    match (found.pop(), found.as_slice()) {
        (Some((identity, verdicts)), []) => Ok(Recorded::new(identity, verdicts)),
        (None, _) => {
            let failure = Failure::usage(format!("{} has no verdicts of a judge on {whom}", log.display()));
            Err(failure.help(format!("name a log that has some, or another {flag}")))
        }
        (Some((last, _)), others) => {
            let names: Vec<String> = others.iter().map(|(identity, _)| identity.to_json()).collect();
            let all = format!("{} and {}", names.join(", "), last.to_json());
            let failure = Failure::usage(format!("{} has verdicts of several judges on {whom}: {all}", log.display()));
            Err(failure.help("export the run of the one that you mean, and name that archive"))
        }
    }
}

/// The panel of a recorded run, to go on with it.
pub(crate) fn recorded(config: &EngineConfig) -> Result<Panel, Failure> {
    Ok(recorded::panel(config)?)
}
