//! Events like those of a recording: prompts, completions with log-probabilities, cells, calls and answers.

use rao_store::event::{
    ActionSampled, Answer, Body, CallAnswered, CallIssued, CellFinished, CellStarted, ContextExtended, LogProbKind,
    Role, SamplerSettings, StopReason,
};
use rao_store::{LogProb, NodePath, PolicyVersion, RolloutId, RunId, Stream, TokenId};

/// Rollouts that take turns, so that the order of arrival is not the order of keys.
pub const STREAMS: u32 = 16;

/// A generator of events, the same for every store: xorshift, so that no library decides the bytes.
pub struct Events {
    state: u64,
    step: u32,
    waiting: Vec<Body>,
}

const WORDS: [&str; 12] =
    ["craft", " the", " item", "\n", "print", "(", ")", " await", "launch_subagent", " recipe", " of", " t7"];

impl Events {
    pub fn new(seed: u64) -> Self {
        Events { state: seed * 2 + 1, step: 0, waiting: Vec::new() }
    }

    fn uniform(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Words with the frequencies of language: Zipf over 50,000 ids.
    fn turn(&mut self, least: u32, spread: f64) -> (Vec<TokenId>, String, Vec<LogProb>) {
        let (mut tokens, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
        for _ in 0..least + (self.uniform() * spread) as u32 {
            let id = 50_000f64.powf(self.uniform()) as u32;
            tokens.push(TokenId(id));
            text.push_str(WORDS[id as usize % WORDS.len()]);
            let logit = -(self.uniform().ln().abs() as f32) * 0.7;
            logprobs.push(LogProb(logit - (1.0 + (-logit.abs()).exp()).ln()));
        }
        (tokens, text, logprobs)
    }

    /// One step of a node: six events.
    fn fill(&mut self) {
        let step = self.step % 20;
        self.step += 1;
        let node = NodePath::root();
        let (tokens, text, logprobs) = self.turn(20, 60.0);
        let code = text.clone();
        let (seen, output, _) = self.turn(10, 60.0);
        let args = format!("{{\"args\":[[\"m{}_i1\"]],\"kwargs\":{{}}}}", tokens[0].0 % 9);
        self.waiting = vec![
            ContextExtended {
                node: node.clone(),
                step: step + 1,
                role: Role::Observation,
                text: output.clone(),
                at: 300,
                tokens: seen,
            }
            .into(),
            CellFinished { node: node.clone(), step, stdout: output, error: None, limit: None, rejected: false }.into(),
            CallAnswered {
                node: node.clone(),
                step,
                answers: vec![(0, Answer::Value("{\"m0_ore\":12,\"m1_i2\":3}".into()))],
            }
            .into(),
            CallIssued { node: node.clone(), step, call: 0, name: "get_info".into(), args }.into(),
            CellStarted { node: node.clone(), step, code }.into(),
            ActionSampled {
                node,
                step,
                text,
                at: 100,
                tokens,
                logprobs,
                logprob_kind: LogProbKind::Model,
                sampler: SamplerSettings::whole(1.0, 512),
                stop: StopReason::CellEnd,
                policy_version: PolicyVersion(1),
            }
            .into(),
        ];
    }
}

impl Iterator for Events {
    type Item = Body;

    fn next(&mut self) -> Option<Body> {
        if self.waiting.is_empty() {
            self.fill();
        }
        self.waiting.pop()
    }
}

/// The stream that a commit belongs to.
pub fn stream(run: u8, commit: usize) -> Stream {
    Stream::Rollout(RunId([run; 16]), RolloutId(commit as u32 % STREAMS))
}

/// The key of an event: run, rollout, sequence number, so that the order of keys is the order of streams.
pub fn key(stream: u32, seq: u64) -> [u8; 28] {
    let mut key = [0; 28];
    key[16..20].copy_from_slice(&stream.to_be_bytes());
    key[20..].copy_from_slice(&seq.to_be_bytes());
    key
}
