//! Byte-level BPE, trained on texts.

use crate::{Chat, PolicyError, chat};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer};

/// Isolated before merging, so that names are spelt from pieces that recur and numbers are single tokens: `t2`, `_i11`, `_11`,
/// `_ore`, `raw`, `17`. All other text is left whole: phrases that recur become single tokens.
const PIECES: &str = r"_[a-z]?[0-9]+|[a-z][0-9]+|_ore|raw|[0-9]+";

/// What to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerSpec {
    /// Tokens in all, with 3 control tokens and 256 bytes; fewer come out when no pair of tokens occurs twice.
    pub vocab_size: usize,
    /// The most bytes a token may have: without a bound, a long text that is in every sample takes all the merges.
    pub max_token_bytes: usize,
}

/// Trains a byte-level BPE tokenizer and gives its `tokenizer.json`: the same bytes for the same texts, whatever the machine.
///
/// Every merge takes the most frequent pair of neighbouring tokens; of equals, the one with the lowest ids.
///
/// # Errors
/// When `vocab_size` is below 259, or the definition cannot be written.
pub fn train_tokenizer<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    spec: TokenizerSpec,
) -> Result<Vec<u8>, PolicyError> {
    let base = chat::SPECIALS.len() + 256;
    if spec.vocab_size < base {
        let reason = format!("{} is below {base}: the control tokens and the bytes", spec.vocab_size);
        return Err(PolicyError::Input { what: "vocab_size".to_owned(), reason });
    }
    let empty = chat::definition(Some(PIECES), &[], &[])?;
    let splitter = Tokenizer::from_bytes(&empty).map_err(|e| PolicyError::Tokenizer { reason: e.to_string() })?;
    let mut words = Words::new(count_pieces(&splitter, texts)?);
    let (mut tokens, mut merges) = (Vec::new(), Vec::new());
    while base + tokens.len() < spec.vocab_size {
        let Some(pair) = words.most_frequent(spec.max_token_bytes) else { break };
        let id = words.merge(pair);
        tokens.push(words.texts[id as usize].clone());
        merges.push((words.texts[pair.0 as usize].clone(), words.texts[pair.1 as usize].clone()));
    }
    let json = chat::definition(Some(PIECES), &tokens, &merges)?;
    Chat::from_bytes(&json)?;
    Ok(json)
}

/// How often each piece occurs, in the order of pieces; a piece is written in the byte alphabet.
fn count_pieces<'a>(
    splitter: &Tokenizer,
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, u64>, PolicyError> {
    let fault = |e: tokenizers::Error| PolicyError::Tokenizer { reason: format!("cannot split a text: {e}") };
    let mut counts = BTreeMap::new();
    for text in texts {
        let mut pieces = PreTokenizedString::from(text);
        if let Some(steps) = splitter.get_pre_tokenizer() {
            steps.pre_tokenize(&mut pieces).map_err(fault)?;
        }
        for (piece, ..) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            if let Some(count) = counts.get_mut(piece) {
                *count += 1;
            } else {
                counts.insert(piece.to_owned(), 1);
            }
        }
    }
    Ok(counts)
}

type Pair = (u32, u32);

/// The distinct pieces as tokens, and where each pair of neighbours occurs.
struct Words {
    words: Vec<(Vec<u32>, u64)>,
    /// Occurrences, and the words that may hold the pair. Its order is never used.
    pairs: HashMap<Pair, (u64, BTreeSet<usize>)>,
    /// Each token in the byte alphabet.
    texts: Vec<String>,
}

impl Words {
    fn new(counts: BTreeMap<String, u64>) -> Self {
        let alphabet: Vec<String> = (0..=255).map(|byte| chat::byte_char(byte).to_string()).collect();
        let first = chat::SPECIALS.len() as u32;
        let ids: BTreeMap<&str, u32> = alphabet.iter().map(String::as_str).zip(first..).collect();
        let mut buffer = [0; 4];
        let words = counts
            .iter()
            .map(|(word, n)| {
                let tokens = word.chars().filter_map(|c| ids.get(&*c.encode_utf8(&mut buffer)).copied()).collect();
                (tokens, *n)
            })
            .collect();
        let texts = chat::SPECIALS.iter().map(|s| (*s).to_owned()).chain(alphabet.iter().cloned()).collect();
        let mut all = Self { words, pairs: HashMap::new(), texts };
        for at in 0..all.words.len() {
            all.count(at, true);
        }
        all
    }

    /// Adds the pairs of a word, or takes them away.
    fn count(&mut self, at: usize, add: bool) {
        let (tokens, n) = &self.words[at];
        for pair in tokens.windows(2) {
            let (count, places) = self.pairs.entry((pair[0], pair[1])).or_default();
            if add {
                *count += n;
                places.insert(at);
            } else {
                *count -= n;
                places.remove(&at);
            }
        }
    }

    fn most_frequent(&self, max_bytes: usize) -> Option<Pair> {
        let length = |id: u32| self.texts[id as usize].chars().count();
        let fits = |pair: &Pair| length(pair.0) + length(pair.1) <= max_bytes;
        self.pairs
            .iter()
            .filter(|(pair, (count, _))| *count >= 2 && fits(pair))
            .max_by_key(|(pair, (count, _))| (*count, Reverse(**pair)))
            .map(|(pair, _)| *pair)
    }

    /// Makes a token of a pair wherever it occurs, from the left.
    fn merge(&mut self, pair: Pair) -> u32 {
        let id = self.texts.len() as u32;
        self.texts.push(format!("{}{}", self.texts[pair.0 as usize], self.texts[pair.1 as usize]));
        let places = self.pairs.get(&pair).map(|(_, places)| places.clone()).unwrap_or_default();
        for at in places {
            self.count(at, false);
            let tokens = &mut self.words[at].0;
            let (mut read, mut write) = (0, 0);
            while read < tokens.len() {
                let joined = tokens.get(read + 1).is_some_and(|next| (tokens[read], *next) == pair);
                tokens[write] = if joined { id } else { tokens[read] };
                read += if joined { 2 } else { 1 };
                write += 1;
            }
            tokens.truncate(write);
            self.count(at, true);
        }
        self.pairs.retain(|_, (count, _)| *count > 0);
        id
    }
}
