use std::fmt;

/// A server's key. It goes into one request header and nowhere else: its debug form hides it, it has no other text form,
/// and it is taken out of everything that a server says before that reaches a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// A key; an empty one is none.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Key(text.to_owned()))
    }

    /// The value of the `Authorization` header.
    pub(super) fn header(&self) -> Option<reqwest::header::HeaderValue> {
        let mut value = reqwest::header::HeaderValue::from_str(&format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The text without the key.
    pub(super) fn redact(&self, text: &str) -> String {
        text.replace(&self.0, "[key]")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key([key])")
    }
}
