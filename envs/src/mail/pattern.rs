//! Sentences with slots, written and read by the same pattern.

/// Fills a pattern such as `the mail with the subject "{subject}" from {from}`.
pub(super) fn fill(pattern: &str, values: &[&str]) -> String {
    let mut out = String::new();
    let mut values = values.iter();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((_, behind)) = after.split_once('}') else { break };
        out.push_str(before);
        out.push_str(values.next().copied().unwrap_or_default());
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// The values with which [`fill`] gives `text`, each as short as can be; `None` if the text has another form.
pub(super) fn read(pattern: &str, text: &str) -> Option<Vec<String>> {
    let mut literals = Vec::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        literals.push(before);
        rest = after.split_once('}')?.1;
    }
    literals.push(rest);
    let (first, others) = literals.split_first()?;
    let mut left = text.strip_prefix(first)?;
    let mut values = Vec::new();
    for (index, literal) in others.iter().enumerate() {
        // What ends the pattern must end the text; a slot at the very end takes all that is left.
        let at = if index + 1 == others.len() { left.strip_suffix(literal)?.len() } else { left.find(literal)? };
        values.push(left.get(..at)?.to_owned());
        left = left.get(at + literal.len()..)?;
    }
    let slots: Vec<&str> = values.iter().map(String::as_str).collect();
    (!values.iter().any(String::is_empty) && fill(pattern, &slots) == text).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_in_is_read_back() {
        let pattern = "mail \"{subject}\" from {from}?";
        let text = fill(pattern, &["a \"b\" c", "x@y"]);
        assert_eq!(text, "mail \"a \"b\" c\" from x@y?");
        assert_eq!(read(pattern, &text), Some(vec!["a \"b\" c".to_owned(), "x@y".to_owned()]));
        for other in ["", "mail \"a\" from x", "mail \"\" from x?", "Mail \"a\" from x?", "mail \"a\" from x? y"] {
            assert_eq!(read(pattern, other), None, "{other}");
        }
        assert_eq!(read("{a}, {b}", "1, 2, 3"), Some(vec!["1".to_owned(), "2, 3".to_owned()]));
        assert_eq!(read("plain", "plain"), Some(vec![]));
    }
}
