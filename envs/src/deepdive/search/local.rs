//! The best pages of a corpus by BM25, from an index in memory.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::{
    LowerCaser, SimpleTokenizer, TextAnalyzer, Token, TokenFilter, TokenStream, Tokenizer, TokenizerManager,
};
use tantivy::{Index, Searcher, TantivyDocument, Term};

use super::{Corpus, CorpusError, Hit, Lane, Page, SearchBackend, SearchError};

/// How much more a word counts that stands in the title. Chosen on the MuSiQue questions, where 0.25 to 0.5 find most.
const TITLE_BOOST: f32 = 0.4;

/// What the index writer sizes its tables by, in bytes. It makes one segment however large the corpus is.
const WRITER_MEMORY: usize = 20 << 20;

/// A result's content is a passage of about this many bytes.
const PASSAGE: usize = 320;

/// Results below the last that was asked for, so that pages whose scores round to the same value are all there.
const MARGIN: usize = 16;

/// A score at which a result is shown as half fitting.
const HALF_SCORE: f64 = 10.0;

const ANALYZER: &str = "words";

/// An index of a corpus. Words are runs of letters and digits, in lower case, without the s of a plural.
///
/// Pages whose scores agree to four digits come in the order of the corpus, so results do not depend on the last bits
/// of a logarithm.
pub struct LocalBm25 {
    corpus: Arc<Corpus>,
    searcher: Searcher,
    title: Field,
    body: Field,
    analyzer: TextAnalyzer,
}

impl std::fmt::Debug for LocalBm25 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalBm25").field("corpus", &self.corpus.digest()).finish_non_exhaustive()
    }
}

impl LocalBm25 {
    /// Indexes a corpus.
    ///
    /// # Errors
    /// [`CorpusError::Index`].
    pub fn new(corpus: Arc<Corpus>) -> Result<Self, CorpusError> {
        let mut schema = Schema::builder();
        let words = TextFieldIndexing::default().set_tokenizer(ANALYZER).set_index_option(IndexRecordOption::WithFreqs);
        let options = TextOptions::default().set_indexing_options(words);
        let title = schema.add_text_field("title", options.clone());
        let body = schema.add_text_field("body", options);
        let analyzer = TextAnalyzer::builder(SimpleTokenizer::default()).filter(LowerCaser).filter(Singular).build();
        let index = build(&corpus, schema.build(), title, body, &analyzer);
        let searcher = index.and_then(|index| Ok(index.reader()?.searcher()));
        let searcher = searcher.map_err(|error| CorpusError::Index(error.to_string()))?;
        Ok(Self { corpus, searcher, title, body, analyzer })
    }

    /// The pages that it finds.
    #[must_use]
    pub fn corpus(&self) -> &Arc<Corpus> {
        &self.corpus
    }

    /// The words of a text as the index has them, in order.
    fn words(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        // Reading a text changes the analyzer's own buffers.
        self.analyzer.clone().token_stream(text).process(&mut |token| words.push(token.text.clone()));
        words
    }

    fn best(&self, query: &str, count: usize) -> Result<Vec<(f64, usize)>, tantivy::TantivyError> {
        let mut parts: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        for word in self.words(query) {
            let term = |field| TermQuery::new(Term::from_field_text(field, &word), IndexRecordOption::WithFreqs);
            parts.push((Occur::Should, Box::new(term(self.body))));
            parts.push((Occur::Should, Box::new(BoostQuery::new(Box::new(term(self.title)), TITLE_BOOST))));
        }
        if parts.is_empty() || count == 0 {
            return Ok(Vec::new());
        }
        let query = BooleanQuery::new(parts);
        let top = TopDocs::with_limit(count.saturating_add(MARGIN)).order_by_score();
        let found = self.searcher.search(&query, &top)?;
        // One segment, so a document's number is its page's place.
        let mut found: Vec<(f64, usize)> =
            found.into_iter().map(|(score, at)| ((f64::from(score) * 1e4).round(), at.doc_id as usize)).collect();
        found.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1)));
        found.truncate(count);
        Ok(found.into_iter().map(|(score, at)| (score / 1e4, at)).collect())
    }

    /// The best pages for a query, best first.
    ///
    /// # Errors
    /// [`SearchError::Garbage`] if the index fails, which a sound one does not.
    pub fn find(&self, query: &str, count: usize) -> Result<Vec<&Page>, SearchError> {
        let best = self.best(query, count).map_err(|error| SearchError::Garbage { reason: error.to_string() })?;
        Ok(best.into_iter().filter_map(|(_, at)| self.corpus.pages().get(at)).collect())
    }

    /// The passage of a text that shares most words with a query: whole sentences, about [`PASSAGE`] bytes of them.
    fn passage(&self, text: &str, query: &[String]) -> String {
        let sentences: Vec<&str> = text.split_inclusive(['.', '!', '?', '\n']).collect();
        let mut best = (0, 0..sentences.len().min(1));
        for start in 0..sentences.len() {
            let mut end = start;
            let mut length = 0;
            while let Some(sentence) = sentences.get(end) {
                if end > start && length + sentence.len() > PASSAGE {
                    break;
                }
                length += sentence.len();
                end += 1;
            }
            let words = self.words(&sentences.get(start..end).unwrap_or_default().concat());
            let shared = query.iter().filter(|word| words.contains(word)).count();
            if shared > best.0 {
                best = (shared, start..end);
            }
        }
        let passage = sentences.get(best.1).unwrap_or_default().concat();
        let passage = passage.trim();
        if passage.len() <= 2 * PASSAGE {
            return passage.to_owned();
        }
        let end = (0..=2 * PASSAGE).rev().find(|&end| passage.is_char_boundary(end)).unwrap_or(0);
        format!("{}..", passage.get(..end).unwrap_or_default())
    }
}

fn build(
    corpus: &Corpus,
    schema: Schema,
    title: Field,
    body: Field,
    analyzer: &TextAnalyzer,
) -> Result<Index, tantivy::TantivyError> {
    let tokenizers = TokenizerManager::new();
    tokenizers.register(ANALYZER, analyzer.clone());
    let ram = tantivy::directory::RamDirectory::create();
    let builder = Index::builder().schema(schema).tokenizers(tokenizers);
    let mut writer = builder.single_segment_index_writer(ram, WRITER_MEMORY)?;
    for page in corpus.pages() {
        let mut document = TantivyDocument::default();
        document.add_text(title, &page.title);
        document.add_text(body, format!("{}\n{}", page.title, page.text));
        writer.add_document(document)?;
    }
    writer.finalize()
}

impl SearchBackend for LocalBm25 {
    fn identity(&self) -> Json {
        json!({ "kind": "local", "corpus": self.corpus.digest(), "pages": self.corpus.pages().len() })
    }

    fn search(&self, _lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        let best =
            self.best(query, count as usize).map_err(|error| SearchError::Garbage { reason: error.to_string() })?;
        let words = self.words(query);
        let hits = best.into_iter().filter_map(|(score, at)| {
            let page = self.corpus.pages().get(at)?;
            Some(Hit {
                url: page.url.clone(),
                title: page.title.clone(),
                content: self.passage(&page.text, &words),
                score: (score / (score + HALF_SCORE) * 1e4).round() / 1e4,
            })
        });
        Ok(hits.collect())
    }

    fn open(&self, _lane: &Lane, url: &str) -> Result<String, SearchError> {
        let page = self.corpus.find(url).ok_or_else(|| SearchError::NoPage { url: url.to_owned() })?;
        Ok(page.text.to_string())
    }
}

/// Takes the s off words of four letters and more, but not off a double s.
#[derive(Clone)]
struct Singular;

#[derive(Clone)]
struct SingularTokenizer<T>(T);

struct SingularStream<S>(S);

impl TokenFilter for Singular {
    type Tokenizer<T: Tokenizer> = SingularTokenizer<T>;

    fn transform<T: Tokenizer>(self, tokenizer: T) -> SingularTokenizer<T> {
        SingularTokenizer(tokenizer)
    }
}

impl<T: Tokenizer> Tokenizer for SingularTokenizer<T> {
    type TokenStream<'a> = SingularStream<T::TokenStream<'a>>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Self::TokenStream<'a> {
        SingularStream(self.0.token_stream(text))
    }
}

impl<S: TokenStream> TokenStream for SingularStream<S> {
    fn advance(&mut self) -> bool {
        if !self.0.advance() {
            return false;
        }
        let text = &mut self.0.token_mut().text;
        if text.chars().count() > 3 && text.ends_with('s') && !text.ends_with("ss") {
            text.pop();
        }
        true
    }

    fn token(&self) -> &Token {
        self.0.token()
    }

    fn token_mut(&mut self) -> &mut Token {
        self.0.token_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(pages: &[(&str, &str)]) -> LocalBm25 {
        let page = |(at, (title, text)): (usize, &(&str, &str))| Page {
            url: format!("u{at}"),
            title: (*title).into(),
            text: (*text).into(),
        };
        LocalBm25::new(Arc::new(Corpus::new(pages.iter().enumerate().map(page).collect()).unwrap())).unwrap()
    }

    fn titles(index: &LocalBm25, query: &str, count: usize) -> Vec<String> {
        index.find(query, count).unwrap().iter().map(|page| page.title.clone()).collect()
    }

    #[test]
    fn a_word_in_the_title_counts_more() {
        let index = index(&[("Other", "The mill of Orsel stood here."), ("Orsel", "The mill stood over there.")]);
        assert_eq!(titles(&index, "orsel mill", 2), ["Orsel", "Other"]);
    }

    #[test]
    fn equal_pages_come_in_the_order_of_the_corpus() {
        let same = ("Same", "one and the same text");
        let index = index(&[same; 30]);
        let urls: Vec<String> = index.find("same text", 20).unwrap().iter().map(|page| page.url.clone()).collect();
        assert_eq!(urls, (0..20).map(|at| format!("u{at}")).collect::<Vec<_>>());
    }

    #[test]
    fn plurals_and_case_are_folded() {
        let index = index(&[("A", "Two rivers meet."), ("B", "A glass of water.")]);
        assert_eq!(titles(&index, "RIVER", 5), ["A"]);
        assert_eq!(titles(&index, "glas", 5), Vec::<String>::new());
        assert_eq!(titles(&index, "?!", 5), Vec::<String>::new());
    }

    #[test]
    fn the_passage_is_the_one_that_fits() {
        let filler = "Nothing of note is told here. ".repeat(30);
        let index = index(&[("A", &format!("{filler}The bridge was built in 1871. {filler}"))]);
        let hits = index.search(&Lane::default(), "when was the bridge built", 1).unwrap();
        assert!(hits[0].content.contains("built in 1871"), "{}", hits[0].content);
        assert!(hits[0].content.len() <= PASSAGE);
        assert!(hits[0].score > 0.0 && hits[0].score < 1.0);
    }

    #[test]
    fn a_page_that_is_not_there_is_named() {
        let error = index(&[("A", "x")]).open(&Lane::default(), "u9").unwrap_err();
        assert_eq!(error, SearchError::NoPage { url: "u9".into() });
    }
}
