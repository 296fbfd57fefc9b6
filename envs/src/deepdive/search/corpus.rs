//! A closed set of pages.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its address; unique in a corpus.
    pub url: String,
    /// Its title; several pages may share one.
    pub title: String,
    /// Its text.
    pub text: Arc<str>,
}

/// Why pages make no corpus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// Two pages have the same address.
    #[error("two pages have the address {0}: give each its own")]
    Twice(String),
    /// The pages cannot be indexed.
    #[error("the pages cannot be indexed: {0}")]
    Index(String),
}

/// Pages in a fixed order.
#[derive(Debug)]
pub struct Corpus {
    pages: Vec<Page>,
    by_url: BTreeMap<String, usize>,
    digest: String,
}

impl Corpus {
    /// A corpus of these pages; their order decides between equally good results.
    ///
    /// # Errors
    /// [`CorpusError::Twice`].
    pub fn new(pages: Vec<Page>) -> Result<Self, CorpusError> {
        let mut by_url = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        for (index, page) in pages.iter().enumerate() {
            if by_url.insert(page.url.clone(), index).is_some() {
                return Err(CorpusError::Twice(page.url.clone()));
            }
            for part in [page.url.as_bytes(), page.title.as_bytes(), page.text.as_bytes()] {
                // Lengths keep ("ab", "c") and ("a", "bc") apart.
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        let digest = hasher.finalize().to_hex().to_string();
        Ok(Self { pages, by_url, digest })
    }

    /// The pages in order.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// The page at an address.
    #[must_use]
    pub fn find(&self, url: &str) -> Option<&Page> {
        self.pages.get(*self.by_url.get(url)?)
    }

    /// Names the whole content: blake3 in hexadecimal over every address, title and text in order.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The part of an address that a title gives: lower-case letters and digits, hyphens between words, at most 60 bytes.
pub(crate) fn slug(title: &str) -> String {
    let mut slug = String::new();
    for word in title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if slug.len() + word.len() >= 60 {
            break;
        }
        if !slug.is_empty() {
            slug.push('-');
        }
        slug.push_str(&word.to_ascii_lowercase());
    }
    slug
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(url: &str, text: &str) -> Page {
        Page { url: url.into(), title: "T".into(), text: text.into() }
    }

    #[test]
    fn addresses_are_unique_and_the_digest_follows_the_content() {
        let corpus = |text: &str| Corpus::new(vec![page("a", text), page("b", "x")]);
        assert_eq!(corpus("x").unwrap().digest(), corpus("x").unwrap().digest());
        assert_ne!(corpus("x").unwrap().digest(), corpus("y").unwrap().digest());
        assert_eq!(corpus("x").unwrap().find("b").map(|page| &*page.text), Some("x"));
        assert_eq!(Corpus::new(vec![page("a", ""), page("a", "")]).unwrap_err(), CorpusError::Twice("a".into()));
    }

    #[test]
    fn slugs_are_plain() {
        assert_eq!(slug("Sæmundur fróði: «Njáls» & Co."), "s-mundur-fr-i-nj-ls-co");
        assert!(slug(&"word ".repeat(40)).len() < 60);
    }
}
