//! Which tokens a local policy can draw, and what ends its completions.

use clap::Args;
use rao_engine::Decoding;
use rao_policy::TemplateValues;

use super::exit::Failure;
use super::policies::Loaded;

/// How completions are drawn and ended.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DecodingArgs {
    /// Draw only from so many of the most probable tokens; for local policies [default: 0, which leaves none out].
    #[arg(long, value_name = "K", help_heading = "Agents")]
    pub(crate) top_k: Option<u32>,
    /// End a completion once it holds this text; for local policies. May be given several times.
    #[arg(long, value_name = "TEXT", help_heading = "Agents")]
    pub(crate) stop_text: Vec<String>,
    /// End a completion with this token id; for local policies. May be given several times.
    #[arg(long, value_name = "ID", help_heading = "Agents")]
    pub(crate) stop_id: Vec<u32>,
    /// Value of a variable of the model's chat template, such as enable_thinking=false: NAME=VALUE, or a JSON object. May be
    /// given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = template_values, help_heading = "Agents")]
    pub(crate) chat_template_kwargs: Vec<TemplateValues>,
}

fn template_values(text: &str) -> Result<TemplateValues, String> {
    text.parse().map_err(|error: rao_policy::PolicyError| error.to_string())
}

impl DecodingArgs {
    /// The settings as a run's manifest holds them.
    pub(crate) fn decoding(&self) -> Decoding {
        Decoding { top_k: self.top_k.unwrap_or(0), stop_texts: self.stop_text.clone(), stop_ids: self.stop_id.clone() }
    }

    /// The values of the chat template's variables as a run's manifest holds them.
    pub(crate) fn template_values(&self) -> TemplateValues {
        let mut all = TemplateValues::default();
        self.chat_template_kwargs.iter().for_each(|more| all.extend(more.clone()));
        all
    }

    /// Refuses what the policy would not do.
    pub(crate) fn check(&self, top_p: f32, policy: &Loaded) -> Result<(), Failure> {
        let is_plain = self.decoding() == Decoding::default();
        let refused = match policy {
            Loaded::Scripted(..) if top_p < 1.0 || !is_plain => {
                "--top-p, --top-k, --stop-text and --stop-id are for models: a scripted policy draws nothing"
            }
            Loaded::Served(..) if !is_plain => "--top-k, --stop-text and --stop-id are for local policies",
            _ => return Ok(()),
        };
        Err(Failure::usage(refused).help("leave them out"))
    }
}
