//! The rubrics by name: what a model that judges is told to look for. Each is a text file of this folder.

/// Every rubric: name and text. A rubric that changes is another rubric: verdicts by it are new ones.
const RUBRICS: &[(&str, &str)] = &[
    ("deepdive/child", include_str!("deepdive-child.txt")),
    ("deepdive/root", include_str!("deepdive-root.txt")),
    ("mail/child", include_str!("mail-child.txt")),
    ("mail/root", include_str!("mail-root.txt")),
    ("oolong/child", include_str!("oolong-child.txt")),
];

/// A rubric's text.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    RUBRICS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Digest of a rubric's text, in hexadecimal.
#[must_use]
pub fn digest(name: &str) -> String {
    blake3::hash(text(name).unwrap_or_default().as_bytes()).to_hex().to_string()
}
