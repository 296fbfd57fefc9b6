//! Pages that would give a question away.

/// The fewest bytes that a folded question must have to be searched for: shorter texts stand on pages by chance.
const LEAST: usize = 24;

/// Texts that no page may hold.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockList {
    needles: Vec<String>,
}

impl BlockList {
    /// Blocks pages with the question's text in them, and those with any of `others` in text or address.
    pub(super) fn new(question: &str, others: &[String]) -> Self {
        let question = Some(fold(question)).filter(|question| question.len() >= LEAST);
        let others = others.iter().map(|text| fold(text)).filter(|text| !text.is_empty());
        Self { needles: question.into_iter().chain(others).collect() }
    }

    /// Whether any of these texts gives it away.
    pub(super) fn blocks(&self, texts: &[&str]) -> bool {
        !self.needles.is_empty()
            && texts.iter().any(|text| {
                let text = fold(text);
                self.needles.iter().any(|needle| text.contains(needle))
            })
    }
}

/// Letters and digits in lower case, one space for everything between them.
fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_alphanumeric() {
            out.extend(c.to_lowercase());
        } else if !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_question_is_blocked_however_it_is_set() {
        let list = BlockList::new("Where was the spouse of Mara Venn born?", &["leaks.example".into()]);
        assert!(list.blocks(&["Q12:  where was the SPOUSE of\nMara Venn born -- answer: Velmar"]));
        assert!(list.blocks(&["fine", "https://leaks.example/12"]));
        assert!(!list.blocks(&["Mara Venn was born in Orsel."]));
        assert!(!BlockList::new("Who?", &[]).blocks(&["Who?"]));
    }
}
