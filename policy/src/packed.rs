use crate::PolicyError;

/// One token sequence and the positions to score in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedSequence {
    /// The ids, from the first token of the context.
    pub tokens: Vec<u32>,
    /// Positions `t >= 1`, strictly increasing: `tokens[t]` is predicted from `tokens[..t]`.
    pub targets: Vec<usize>,
}

/// Sequences laid end to end without padding; none sees another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// The sequences.
    pub sequences: Vec<PackedSequence>,
}

impl Packed {
    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    /// Targets in all.
    pub fn targets(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.targets.len()).sum()
    }

    pub(crate) fn check(&self, vocab_size: usize) -> Result<(), PolicyError> {
        if self.tokens() == 0 {
            return Err(PolicyError::Input { what: "packed batch".to_owned(), reason: "it has no tokens".to_owned() });
        }
        for (index, sequence) in self.sequences.iter().enumerate() {
            sequence.fault(vocab_size).map_or(Ok(()), |reason| {
                Err(PolicyError::Input { what: format!("packed sequence {index}"), reason })
            })?;
        }
        Ok(())
    }
}

impl PackedSequence {
    fn fault(&self, vocab_size: usize) -> Option<String> {
        if let Some(id) = self.tokens.iter().find(|id| **id as usize >= vocab_size) {
            return Some(format!("token id {id} is outside the vocabulary of {vocab_size}"));
        }
        if self.targets.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some("its targets are not in increasing order".to_owned());
        }
        let outside = self.targets.iter().find(|target| **target == 0 || **target >= self.tokens.len());
        outside.map(|target| format!("target position {target} is not in 1..{}", self.tokens.len()))
    }
}
