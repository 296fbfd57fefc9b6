//! What a cell prints, cut by the host: the interpreter's own cap would raise `MemoryError` instead.

use std::borrow::Cow;

use monty_types::{MontyException, PrintWriterCallback};
use serde::{Deserialize, Serialize};

use super::alloc;

/// Collects stdout and keeps at most `limit` characters of it: the first three quarters and the last quarter, with a
/// note in between that says how much is left out. stderr is dropped.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Output {
    limit: usize,
    head: String,
    head_chars: usize,
    /// What follows the head; only its last `limit - head_limit` characters are sure to be there.
    tail: String,
    tail_chars: usize,
    /// Characters printed in all.
    total: usize,
}

impl Output {
    pub(super) fn new(limit: usize) -> Output {
        Output { limit, ..Output::default() }
    }

    fn head_limit(&self) -> usize {
        self.limit - self.limit / 4
    }

    pub(super) fn push(&mut self, text: &str) {
        let room = self.head_limit() - self.head_chars;
        let cut = text.char_indices().nth(room).map_or(text.len(), |(at, _)| at);
        let (head, tail) = text.split_at(cut);
        let head_chars = if tail.is_empty() { head.chars().count() } else { room };
        self.head.push_str(head);
        self.head_chars += head_chars;
        self.total += head_chars;
        if !tail.is_empty() {
            let chars = tail.chars().count();
            self.tail.push_str(tail);
            self.tail_chars += chars;
            self.total += chars;
            // Cutting only when twice too long keeps the cost of many small prints linear.
            if self.tail_chars > 2 * (self.limit / 4) + 4_096 {
                self.cut_tail();
            }
        }
    }

    fn cut_tail(&mut self) {
        let keep = self.limit / 4;
        let skip = self.tail_chars.saturating_sub(keep);
        if let Some((at, _)) = self.tail.char_indices().nth(skip) {
            self.tail.drain(..at);
        } else {
            self.tail.clear();
        }
        self.tail_chars = self.tail_chars.min(keep);
    }

    /// The text that the agent sees.
    pub(super) fn finish(mut self) -> String {
        if self.total <= self.limit {
            self.head.push_str(&self.tail);
            return self.head;
        }
        self.cut_tail();
        let left_out = self.total - self.head_chars - self.tail_chars;
        format!("{}\n[... {left_out} characters left out ...]\n{}", self.head, self.tail)
    }
}

impl PrintWriterCallback for Output {
    fn stdout_write(&mut self, output: Cow<'_, str>) -> Result<(), MontyException> {
        alloc::pause(|| self.push(&output));
        Ok(())
    }

    fn stdout_push(&mut self, end: char) -> Result<(), MontyException> {
        alloc::pause(|| self.push(end.encode_utf8(&mut [0; 4])));
        Ok(())
    }

    fn stderr_write(&mut self, _output: Cow<'_, str>) -> Result<(), MontyException> {
        Ok(())
    }

    fn stderr_push(&mut self, _end: char) -> Result<(), MontyException> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_head_and_tail() {
        let printed: String = (0..2_000).map(|n| format!("é{n},")).collect();
        for piece in [1, 3, 1_000, 100_000] {
            let mut output = Output::new(100);
            for chunk in printed.chars().collect::<Vec<_>>().chunks(piece) {
                output.push(&chunk.iter().collect::<String>());
            }
            let chars: Vec<char> = printed.chars().collect();
            let head: String = chars[..75].iter().collect();
            let tail: String = chars[chars.len() - 25..].iter().collect();
            let note = format!("\n[... {} characters left out ...]\n", chars.len() - 100);
            assert_eq!(output.finish(), head + &note + &tail);
        }
    }

    #[test]
    fn output_at_the_limit_is_whole() {
        let mut output = Output::new(8);
        output.push("abcdefg");
        output.push("h");
        assert_eq!(output.clone().finish(), "abcdefgh");
        output.push("i");
        assert_eq!(output.finish(), "abcdef\n[... 1 characters left out ...]\nhi");
    }
}
