//! Judges by name, and those of a recorded run.

use std::path::Path;
use std::sync::Arc;

use rao_engine::EngineConfig;
use rao_envs::Environment;
use rao_envs::judge::{JudgeIdentity, Llm, LlmError, LlmSettings, Panel, Recorded, Role, Seat, Secret, Spec, proxy};
use rao_replay::rejudge::recorded_judges;
use rao_replay::{recorded, regression};
use rao_store::event::HostFacts;

use super::exit::{Code, Failure};
use super::out::note;
use super::{open, served};

/// The facts under which a run notes how its judges of roots and of children were named, where they do not compute. They
/// say where these were to be found; who judged stands in the run's settings.
const FACTS: [(&str, Role); 2] = [("judge", Role::Root), ("child judge", Role::Child)];

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
        (None, Spec::Llm(rest)) => Ok(Seat::Judge(Arc::new(model(rest)?))),
        (None, _) => Err(Failure::usage(format!("judge `{spec}` cannot be opened by this program"))
            .help("choose exact, f1:THRESHOLD or, for children, root")),
    }
}

/// The model behind a chat endpoint.
fn model(rest: &str) -> Result<Llm, LlmError> {
    let key = served::key_text().and_then(|text| Secret::new(&text));
    let warn = Arc::new(|text: &str| note(format_args!("warning: {text}")));
    Llm::new(LlmSettings::parse(rest, key, warn)?)
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

/// Adds what a run notes of judges that do not compute.
pub(crate) fn add_facts(root: Option<&Spec>, child: Option<&Spec>, host: &mut HostFacts) {
    for ((name, _), spec) in FACTS.iter().zip([root, child]) {
        host.facts
            .extend(spec.filter(|spec| spec.computed().is_none()).map(|spec| ((*name).to_owned(), spec.to_string())));
    }
}

/// Takes over what another run notes of them.
pub(crate) fn keep_facts(base: &HostFacts, host: &mut HostFacts) {
    let known = |name: &str| FACTS.iter().any(|(fact, _)| *fact == name);
    host.facts.extend(base.facts.iter().filter(|(name, _)| known(name)).cloned());
}

/// The panel of a recorded run, to go on with it.
pub(crate) fn recorded(config: &EngineConfig, host: &HostFacts) -> Result<Panel, Failure> {
    let Some(judges) = &config.judges else { return Ok(recorded::panel(config)?) };
    let [root, child] = [&judges.root, &judges.child];
    let [root, child] = [(root, FACTS[0]), (child, FACTS[1])].map(|(identity, fact)| again(identity, fact, host));
    match (root?, child?) {
        (Seat::Judge(root), child) => Ok(Panel::new(root, child)),
        (Seat::Root, _) => Ok(recorded::panel(config)?),
    }
}

/// The judge with that identity, as the run notes it or, if it computes, by its identity alone.
fn again(identity: &JudgeIdentity, (fact, role): (&str, Role), host: &HostFacts) -> Result<Seat, Failure> {
    let Some(spec) = open::fact(host, fact).and_then(|text| text.parse::<Spec>().ok()) else {
        return Spec::of_identity(identity).ok_or_else(|| {
            let message = format!("the run was recorded with a judge that is not at hand: {}", identity.to_json());
            Failure::new(Code::Unavailable, message).help("use the version of rao-log that recorded it")
        });
    };
    let seat = seat(&spec, role)?;
    let now = match &seat {
        Seat::Judge(judge) => judge.identity(),
        Seat::Root => proxy(),
    };
    if now == *identity {
        return Ok(seat);
    }
    let message = format!("the run was recorded with judge {}, now there is {}", identity.to_json(), now.to_json());
    Err(Failure::usage(message).help("go on with the version of rao-log, and the verdicts, that it was recorded with"))
}

impl From<LlmError> for Failure {
    fn from(error: LlmError) -> Self {
        Failure::usage(error.to_string())
    }
}
