use std::time::Duration;

/// Why a server cannot be used, or why what it answered is not taken.
///
/// What a server sent is checked and refused rather than mended: nothing is padded, cut to fit or guessed. No message
/// ever holds the key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ServedError {
    /// The address cannot be used.
    #[error("server address `{given}`: {reason}; write it as http://HOST:PORT")]
    Address {
        /// What was given, without what might be secret.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting that does not fit the server.
    #[error("{what}: {reason}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Why it is refused, and what to do.
        reason: String,
    },
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be made: {reason}; check the certificates that the system trusts")]
    Client {
        /// Why.
        reason: String,
    },
    /// Nobody answers at the address.
    #[error("no connection to {server}: {reason}; is it running, and is the address right?")]
    Unreachable {
        /// The server's address.
        server: String,
        /// Why.
        reason: String,
    },
    /// The server refused a request.
    #[error("{server}{path} answered with status {status}: {message}{}", advice(*.status))]
    Status {
        /// The server's address.
        server: String,
        /// The endpoint.
        path: &'static str,
        /// The HTTP status.
        status: u16,
        /// What the server said, shortened.
        message: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// No answer in time.
    #[error("{server}{path} gave no whole answer within {} s; raise the time limit, or lower the number of requests at a time", after.as_secs_f64())]
    Timeout {
        /// The server's address.
        server: String,
        /// The endpoint.
        path: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The answer ended in the middle.
    #[error("{server}{path}: the answer was cut off: {reason}")]
    Cut {
        /// The server's address.
        server: String,
        /// The endpoint.
        path: &'static str,
        /// How.
        reason: String,
    },
    /// The answer is not what this kind of server answers.
    #[error(
        "{server}{path}: the answer cannot be read: {reason}; is the kind of server (--server) right, and its version recent?"
    )]
    Reply {
        /// The server's address.
        server: String,
        /// The endpoint.
        path: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The server names several models, or not the one asked for.
    #[error("{server} {reason}; it serves: {available}")]
    Model {
        /// The server's address.
        server: String,
        /// What does not fit, and what to do.
        reason: String,
        /// The models there are.
        available: String,
    },
    /// The server does not say what program it is.
    #[error(
        "{server} does not say which kind of server it is{owner}; name it: --server vllm, sglang, llamacpp, or text (which cannot be trained on)"
    )]
    Kind {
        /// The server's address.
        server: String,
        /// What it says instead.
        owner: String,
    },
    /// The server's tokenizer is another one.
    #[error(
        "the server's tokenizer is not the one given: a test text of {ours} tokens here has {theirs} there, and they differ from token {at}{detail}; name the tokenizer.json of the model that is served with --tokenizer"
    )]
    Tokenizer {
        /// Tokens here.
        ours: usize,
        /// Tokens there.
        theirs: usize,
        /// The first that differs.
        at: usize,
        /// Both ids, if both have one.
        detail: String,
    },
    /// The prompt that the server saw is not the one that was sent.
    #[error(
        "the server did not take the prompt as it was sent: {sent} tokens were sent, it counted {seen}{detail}; it tokenizes anew or adds tokens, so its answers cannot be trained on: use --server text for it"
    )]
    Retokenized {
        /// Tokens sent.
        sent: usize,
        /// Tokens that the server counted.
        seen: u64,
        /// The first difference, if the server sent its ids back.
        detail: String,
    },
    /// Ids and log-probabilities that do not pair up.
    #[error(
        "the server gave {logprobs} log-probabilities for {tokens} tokens; one for each is needed, and none is ever made up"
    )]
    Counts {
        /// How many tokens.
        tokens: usize,
        /// How many log-probabilities.
        logprobs: usize,
    },
    /// The ids beside the log-probabilities are not those of the completion.
    #[error("token {at} of the completion has id {id}, but its log-probability is that of {other}")]
    Mismatch {
        /// Which token.
        at: usize,
        /// Its id.
        id: u32,
        /// The id beside the log-probability.
        other: String,
    },
    /// A number that is no log-probability.
    #[error("token {at} of the completion has the log-probability {value}, which is none")]
    LogProb {
        /// Which token.
        at: usize,
        /// The value as sent.
        value: String,
    },
    /// A token that the tokenizer does not have.
    #[error(
        "token {at} of the completion has id {id}, which the tokenizer with {size} entries does not have: name the tokenizer.json of the model that is served"
    )]
    Vocabulary {
        /// Which token.
        at: usize,
        /// Its id.
        id: u32,
        /// Entries of the tokenizer.
        size: usize,
    },
    /// More or fewer tokens than can be.
    #[error("the server gave {given} tokens where {asked} were asked for: {reason}")]
    Length {
        /// Tokens given.
        given: usize,
        /// Tokens asked for.
        asked: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The context is no conversation.
    #[error("the context cannot be written as chat messages: {reason}")]
    Messages {
        /// Why.
        reason: &'static str,
    },
    /// The user stopped it.
    #[error("stopped while waiting for the server")]
    Cancelled,
}

/// What helps against a status.
fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "; the key is taken from RAO_LOG_API_KEY or OPENAI_API_KEY",
        404 => "; is the kind of server (--server) right, and the address without a path?",
        429 => "; lower the number of requests at a time",
        _ => "",
    }
}

impl ServedError {
    /// Whether the same request can succeed a little later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            ServedError::Unreachable { .. } | ServedError::Timeout { .. } | ServedError::Cut { .. } => true,
            ServedError::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            ServedError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether a flag has to change, rather than the server.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            ServedError::Address { .. }
                | ServedError::Setting { .. }
                | ServedError::Kind { .. }
                | ServedError::Model { .. }
                | ServedError::Tokenizer { .. }
        )
    }
}
