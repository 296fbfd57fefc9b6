//! Values that a user gives to the variables of a chat template.

use crate::PolicyError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Values of a chat template's variables by name, such as `enable_thinking` of Qwen3's: what vLLM and Transformers call
/// `chat_template_kwargs`. In JSON they are an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateValues(pub BTreeMap<String, Value>);

impl TemplateValues {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes more values; of two for one name the later counts.
    pub fn extend(&mut self, more: TemplateValues) {
        self.0.extend(more.0);
    }
}

impl FromStr for TemplateValues {
    type Err = PolicyError;

    /// Reads `NAME=VALUE`, where the value is JSON (`false`, `3`, `"text"`) or else a text as it stands; or a whole JSON
    /// object.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let fault = |reason: String| Err(PolicyError::TemplateValue { reason });
        if text.trim_start().starts_with('{') {
            return match serde_json::from_str(text) {
                Ok(values) => Ok(TemplateValues(values)),
                Err(error) => fault(format!("`{text}` is no JSON object: {error}")),
            };
        }
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
                Ok(TemplateValues(BTreeMap::from([(name.trim().to_owned(), value)])))
            }
            _ => fault(format!("`{text}` is neither NAME=VALUE nor a JSON object")),
        }
    }
}

impl fmt::Display for TemplateValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_read_as_people_and_programs_write_them() {
        let read = |text: &str| text.parse::<TemplateValues>().map(|values| json!(values));
        assert_eq!(read("enable_thinking=false").unwrap(), json!({"enable_thinking": false}));
        assert_eq!(read("effort=low").unwrap(), json!({"effort": "low"}));
        assert_eq!(read(r#"effort="3""#).unwrap(), json!({"effort": "3"}));
        assert_eq!(read("budget=3").unwrap(), json!({"budget": 3}));
        assert_eq!(read(r#"{"a": true, "b": [1, "x"]}"#).unwrap(), json!({"a": true, "b": [1, "x"]}));
        for wrong in ["enable_thinking", "=false", "{enable_thinking: false}"] {
            assert!(read(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
        let mut two: TemplateValues = "a=1".parse().unwrap();
        two.extend(r#"{"a": 2, "b": "x"}"#.parse().unwrap());
        assert_eq!(two.to_string(), r#"a=2, b="x""#);
    }
}
