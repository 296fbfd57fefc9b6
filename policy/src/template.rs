//! Chat templates as models ship them: Jinja, rendered in a sandbox with bounded work.

use crate::{PolicyError, TemplateValues};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};
use std::collections::BTreeMap;

/// Work that one rendering may take: about one unit for an instruction and one for 64 bytes of data.
const FUEL: u64 = 2_000_000;

/// The longest template that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// What every rendering sets itself.
const OWN: [&str; 4] = ["messages", "add_generation_prompt", "bos_token", "eos_token"];

/// Left out on purpose; see [`Template::new`].
const CLOCK: &str = "strftime_now";

/// The only name in the environment.
const NAME: &str = "chat";

/// One turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) role: &'static str,
    pub(crate) content: &'a str,
}

/// A chat template, the two tokens that it may name, and the values that were given to its other variables.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    values: BTreeMap<String, Value>,
}

impl Template {
    /// Reads a template.
    ///
    /// What Hugging Face offers to templates is there, apart from the clock (`strftime_now`): a prompt must be the same
    /// tomorrow, and templates that would print today's date have one of their own for its absence.
    pub(crate) fn new(source: &str, bos: &str, eos: &str) -> Result<Self, PolicyError> {
        if source.len() > LONGEST {
            return Err(fault(format!("it has {} bytes; at most {LONGEST} are read", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| fault(explain(&e)))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_template_owned(NAME, without_generation_marks(source)).map_err(|e| fault(explain(&e)))?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), values: BTreeMap::new() })
    }

    /// The same template with values for some of its variables.
    ///
    /// # Errors
    /// When it has no variable of a name: a misspelt one would change nothing and be taken to have done so.
    pub(crate) fn with(&self, values: &TemplateValues) -> Result<Self, PolicyError> {
        let fault = |reason: String| PolicyError::TemplateValue { reason };
        let variables = self.variables()?;
        for name in values.0.keys() {
            if OWN.contains(&name.as_str()) {
                return Err(fault(format!(
                    "`{name}` is what the conversation itself gives to the template; leave it out"
                )));
            }
            if !variables.contains(name) {
                let known = match variables.as_slice() {
                    [] => "it has none that can be set".to_owned(),
                    all => format!("it has {}", all.join(", ")),
                };
                return Err(fault(format!("the model's chat template has no variable `{name}`; {known}")));
            }
        }
        let values = values.0.iter().map(|(name, value)| (name.clone(), jinja(value))).collect();
        Ok(Self { values, ..self.clone() })
    }

    /// The variables that can be given a value: those that the template reads and nothing else sets.
    fn variables(&self) -> Result<Vec<String>, PolicyError> {
        let template = self.environment.get_template(NAME).map_err(|e| fault(explain(&e)))?;
        let set = |name: &String| {
            OWN.contains(&name.as_str())
                || name == CLOCK
                || self.environment.globals().any(|(global, _)| global == name)
        };
        let mut all: Vec<String> = template.undeclared_variables(false).into_iter().filter(|name| !set(name)).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// The text of a conversation; with `open`, up to where the assistant speaks next.
    pub(crate) fn render(&self, messages: &[Message<'_>], open: bool) -> Result<String, PolicyError> {
        let messages: Vec<Value> = messages.iter().map(|m| context! { role => m.role, content => m.content }).collect();
        let values = context! {
            messages => messages, add_generation_prompt => open, bos_token => &self.bos,
            eos_token => &self.eos, ..Value::from(self.values.clone())
        };
        let template = self.environment.get_template(NAME).map_err(|e| fault(explain(&e)))?;
        template.render(values).map_err(|e| fault(explain(&e)))
    }
}

fn fault(reason: String) -> PolicyError {
    PolicyError::Template { reason }
}

/// A JSON value as templates see it.
fn jinja(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => Value::from(whole),
            (_, Some(whole), _) => Value::from(whole),
            (_, _, other) => Value::from(other.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(all) => all.iter().map(jinja).collect(),
        Json::Object(fields) => {
            Value::from(fields.iter().map(|(name, value)| (name.clone(), jinja(value))).collect::<BTreeMap<_, _>>())
        }
    }
}

fn explain(error: &Error) -> String {
    let place = error.line().map_or_else(String::new, |line| format!(" in line {line}"));
    match error.kind() {
        ErrorKind::OutOfFuel => format!("rendering it takes too long{place}"),
        _ => format!("{error}{place}"),
    }
}

/// Hugging Face's `{% generation %}` blocks mark the assistant's own words for training and print nothing; other engines do not
/// know them. An `if` that always holds prints the same.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let marks = |c: char| c == '-' || c == '+';
        let (open, close) = (inner.starts_with(marks), inner.ends_with(marks));
        let mark = |present: bool, at: usize| if present { &inner[at..at + 1] } else { "" };
        let with = match inner.trim_matches(marks).trim() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                out.push_str(&tag[..end + 2]);
                rest = &tag[end + 2..];
                continue;
            }
        };
        let (before, after) = (mark(open, 0), mark(close, inner.len().saturating_sub(1)));
        out.push_str(&format!("{{%{before} {with} {after}%}}"));
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message<'_>]) -> Result<String, PolicyError> {
        Template::new(source, "<s>", "</s>")?.render(messages, true)
    }

    const HELLO: [Message<'_>; 1] = [Message { role: "user", content: " hi " }];

    #[test]
    fn what_templates_use_is_there() {
        let source = "{{ bos_token }}{%- for m in messages %}\n  {%- if m['role'] == 'user' %}\n[{{ m.content.strip() | upper }}]\n\
                      {%- endif %}\n{%- endfor %}{% if add_generation_prompt %}>{% endif %}{{ eos_token }}";
        assert_eq!(render(source, &HELLO).unwrap(), "<s>[HI]></s>");
        let marked = "{% generation %}a{%- endgeneration -%} b{% if messages[::-1][0].content.split(' ')[1] == 'hi' %}!{% endif %}";
        assert_eq!(render(marked, &HELLO).unwrap(), "ab!");
        assert_eq!(render("{{ strftime_now is defined }}", &HELLO).unwrap(), "False");
    }

    #[test]
    fn values_reach_the_variables_that_the_template_reads_and_no_other() {
        let source = "{% set own = 1 %}{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}\
                      {%- if thinking is defined and thinking is false %}[none]{% endif %}{{ range(own) }}\
                      {% if depth is defined %}{{ depth.most | join('/') }}{% else %}-{% endif %}{{ strftime_now is defined }}";
        let template = Template::new(source, "<s>", "</s>").unwrap();
        let render = |text: &str| template.with(&text.parse().unwrap()).unwrap().render(&HELLO, true).unwrap();
        assert_eq!(render("{}"), "<s> hi [0]-False");
        assert_eq!(render("thinking=false"), "<s> hi [none][0]-False");
        assert_eq!(render("thinking=true"), "<s> hi [0]-False");
        assert_eq!(render(r#"{"thinking": 0, "depth": {"most": [1.5, "x", 7]}}"#), "<s> hi [0]1.5/x/7False");
        let refused = |text: &str| template.with(&text.parse().unwrap()).err().unwrap().to_string();
        let error = refused("thinkng=false");
        assert!(error.contains("`thinkng`") && error.contains("it has depth, thinking"), "{error}");
        assert!(refused("messages=[]").contains("conversation itself"));
        for not in ["own", "m", "range", "strftime_now", "raise_exception"] {
            assert!(refused(&format!("{not}=1")).contains("no variable"), "{not}");
        }
        assert!(
            Template::new("x", "", "").unwrap().with(&"a=1".parse().unwrap()).unwrap_err().to_string().contains("none")
        );
    }

    #[test]
    fn faults_are_named() {
        let message = |source: &str| render(source, &HELLO).unwrap_err().to_string();
        assert!(message("{% if %}").contains("chat template"), "{}", message("{% if %}"));
        assert!(message("{{ raise_exception('no tools here') }}").contains("no tools here"));
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}";
        assert!(message(endless).contains("too long"));
        let doubling = format!("{{% set x = 'xxxxxxxxxxxxxxxx' %}}{}{{{{ x }}}}", "{% set x = x ~ x %}".repeat(60));
        assert!(message(&doubling).contains("too long"), "memory is bounded as well");
        assert!(message(&"x".repeat(LONGEST + 1)).contains("bytes"));
    }
}
