//! What a run notes of the data and options that its environment was opened with, so that it can be taken up without
//! naming them again.

use std::path::PathBuf;
use std::sync::Arc;

use rao_envs::{EnvSettings, Environment, Options, catalog};
use rao_store::event::{HostFacts, RunStarted};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::{DataArgs, TaskArgs};
use super::exit::{Code, Failure};
use super::{open, recording};

/// The fact under which a run notes its environment's data and options. Runs without any have none.
const WORLD_FACT: &str = "world";

/// The fact's text, as JSON.
#[derive(Serialize, Deserialize)]
struct Noted {
    data: Option<PathBuf>,
    options: Vec<(String, String)>,
}

/// Notes what the environment was opened with, if it was anything.
pub(crate) fn add_fact(tasks: &TaskArgs, host: &mut HostFacts) {
    let data = recording::env_settings(tasks).data.map(|data| data.canonicalize().unwrap_or(data));
    if data.is_none() && tasks.env_option.is_empty() {
        return;
    }
    let noted = Noted { data, options: tasks.env_option.clone() };
    host.facts.extend(serde_json::to_string(&noted).ok().map(|text| (WORLD_FACT.to_owned(), text)));
}

/// The environment of an interrupted run, with the questions of which some are still to be asked. `data` goes before what
/// the run notes, for data that has been moved.
pub(crate) fn resumed(
    started: &RunStarted,
    host: &HostFacts,
    data: &DataArgs,
) -> Result<Arc<dyn Environment>, Failure> {
    let noted = open::fact(host, WORLD_FACT).and_then(|text| serde_json::from_str::<Noted>(text).ok());
    let Some(noted) = noted else { return open::recorded_environment(started, data) };
    let stored: Value = serde_json::from_str(&started.env_config).unwrap_or_default();
    let mut options = noted.options.iter().fold(Options::default(), |all, (name, value)| all.with(name, value));
    if started.env == "textcraft" {
        // These have flags of their own and stand in the manifest.
        for name in ["verify", "worlds"] {
            options = stored[name].as_str().into_iter().fold(options, |all, value| all.with(name, value));
        }
    }
    let data = data.data.clone().or(noted.data);
    let place = data.as_ref().map_or_else(|| "generated".to_owned(), |data| data.display().to_string());
    let env = catalog::open(&started.env, &EnvSettings { data, options, search_key: open::search_key() })?;
    match changed(&env.config(), &stored) {
        None => Ok(env),
        Some(setting) => {
            let message = format!("the tasks or pages ({place}) are not those of the run: `{setting}` differs");
            Err(Failure::new(Code::Usage, message).help("name those that it was recorded with by `--data PATH`"))
        }
    }
}

/// The first setting that is not as stored. What the engine added to the stored ones is no setting.
fn changed(now: &Value, stored: &Value) -> Option<String> {
    let now = now.as_object()?;
    now.iter().find(|(name, value)| stored.get(name) != Some(value)).map(|(name, _)| name.clone())
}
