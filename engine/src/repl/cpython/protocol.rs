//! What host and worker say to each other.
//!
//! A message of the host is a 32-bit length (little-endian) and JSON. A message of the worker is one byte that names
//! its kind, the length, and text: JSON except for output. Values are tagged as [`Value::to_json`] writes them. Nothing
//! that a worker sends is trusted: sizes are bounded, and whatever does not fit is a broken worker.

use std::collections::BTreeSet;

use rao_envs::{Args, ToolResult, Value};
use serde::Deserialize;
use serde_json::{Value as Json, json};

/// The longest message that is read from a worker, in bytes. A call's arguments stay far below: see `worker.py`.
pub(super) const MAX_MESSAGE: usize = 32 << 20;

/// Bytes in front of a worker's message.
pub(super) const HEAD: usize = 5;

/// Why a protection is off, or `None` if it is on.
pub(super) type Off = Option<String>;

/// A worker's first message: what it is and how far it is locked in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Ready {
    pub(super) version: String,
    pub(super) limits: Off,
    pub(super) landlock: Off,
    pub(super) seccomp: Off,
}

/// What a session of the fork server says first, so that nobody else is taken for one.
pub(super) type Token = [u8; 16];

/// A message of the worker or of the fork server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// The fork server is ready, and reached under this name: that of a file, or without one after a zero byte.
    Listening {
        token: Token,
        name: Vec<u8>,
    },
    /// A worker is there; nothing of an agent's runs in it yet.
    Hello {
        token: Token,
        process: u32,
    },
    /// The fork server could not make a worker.
    Refused(String),
    /// How a worker's process ended, as the system says it; `None` if it has not.
    Ended(Option<i32>),
    Ready(Ready),
    Output(String),
    Call {
        number: u32,
        name: String,
        args: Args,
    },
    Blocked(Vec<u32>),
    Done {
        error: Option<String>,
        /// The interpreter itself ran out of memory.
        memory: bool,
    },
}

#[derive(Deserialize)]
struct CallBody {
    call: u32,
    name: String,
    args: Vec<Json>,
    kwargs: Vec<(String, Json)>,
}

#[derive(Deserialize)]
struct DoneBody {
    error: Option<String>,
    memory: bool,
}

/// Takes the first message off `buffer`; `None` if it is not all there yet.
///
/// # Errors
/// What is wrong with the message.
pub(super) fn take(buffer: &mut Vec<u8>) -> Result<Option<Message>, String> {
    let Some((head, rest)) = buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [kind, length @ ..] = *head;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(format!("a message of {length} bytes"));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let message = decode(kind, body)?;
    buffer.drain(..HEAD + length);
    Ok(Some(message))
}

fn decode(kind: u8, body: &[u8]) -> Result<Message, String> {
    match kind {
        b'L' => match body.split_first_chunk() {
            Some((token, name)) => Ok(Message::Listening { token: *token, name: name.to_owned() }),
            None => Err("an address that is cut short".to_owned()),
        },
        b'H' => match body.split_first_chunk() {
            Some((token, &[a, b, c, d])) => {
                Ok(Message::Hello { token: *token, process: u32::from_le_bytes([a, b, c, d]) })
            }
            _ => Err("a hello that is none".to_owned()),
        },
        b'F' => text(body).map(Message::Refused),
        b'E' => read(body).map(Message::Ended),
        b'R' => read(body).map(Message::Ready),
        b'O' => text(body).map(Message::Output),
        b'C' => call(read(body)?),
        b'B' => read(body).map(Message::Blocked),
        b'D' => read(body).map(|DoneBody { error, memory }| Message::Done { error, memory }),
        _ => Err(format!("a message of the unknown kind {kind}")),
    }
}

fn text(body: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("output that is no text: {error}"))?;
    Ok(text.to_owned())
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("a message that cannot be read: {error}"))
}

fn call(body: CallBody) -> Result<Message, String> {
    let value = |json: &Json| Value::from_json(json).map_err(|error| format!("an argument that is no value: {error}"));
    let args = body.args.iter().map(value).collect::<Result<_, _>>()?;
    let mut names = BTreeSet::new();
    let mut kwargs = Vec::with_capacity(body.kwargs.len());
    for (name, json) in body.kwargs {
        if !names.insert(name.clone()) {
            return Err("a call with one keyword twice".to_owned());
        }
        kwargs.push((name, value(&json)?));
    }
    Ok(Message::Call { number: body.call, name: body.name, args: Args { args, kwargs } })
}

/// A message of the host as bytes.
pub(super) fn frame(body: &Json) -> Vec<u8> {
    let text = body.to_string();
    // Messages of the host are answers of tools and cells of at most `MAX_CODE` bytes: far below 4 GiB.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut out = length.to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

fn result(result: &ToolResult) -> Json {
    match result {
        ToolResult::Value(value) => json!({ "value": value.to_json() }),
        ToolResult::Raised { kind, message } => json!({ "raised": [kind, message] }),
    }
}

/// The cell to run.
pub(super) fn cell(code: &str) -> Json {
    json!({ "cell": code })
}

/// A variable that is there before the first cell.
pub(super) fn define(name: &str, text: &str) -> Json {
    json!({ "define": { name: text } })
}

/// The answer to a synchronous call; `re` is the number of the worker's question in this cell, from 1.
pub(super) fn now(re: u32, answer: &ToolResult) -> Json {
    json!({ "re": re, "now": result(answer) })
}

/// The word that an asynchronous call is under way.
pub(super) fn pending(re: u32) -> Json {
    json!({ "re": re })
}

/// Answers to pending calls.
pub(super) fn answers(re: u32, answers: &[(u32, ToolResult)]) -> Json {
    let answers: Vec<Json> = answers.iter().map(|(call, answer)| json!([call, result(answer)])).collect();
    json!({ "re": re, "answers": answers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn messages_come_off_one_by_one_in_whatever_pieces() {
        let whole = [bytes(b'O', "é\n".as_bytes()), bytes(b'B', b"[1,3]")].concat();
        let mut buffer = Vec::new();
        let mut got = Vec::new();
        for byte in whole {
            buffer.push(byte);
            got.extend(take(&mut buffer).unwrap());
        }
        assert_eq!(got, [Message::Output("é\n".to_owned()), Message::Blocked(vec![1, 3])]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_call_keeps_its_values_and_the_order_of_its_keywords() {
        let body =
            br#"{"call":2,"name":"f","args":[{"$tuple":[1,2.5]}],"kwargs":[["z",null],["a",{"$dict":[[1,"x"]]}]]}"#;
        let args = Args::positional([Value::Tuple(vec![Value::Int(1), Value::Float(2.5)])])
            .with("z", Value::None)
            .with("a", Value::Dict(vec![(Value::Int(1), Value::str("x"))]));
        let expected = Message::Call { number: 2, name: "f".to_owned(), args };
        assert_eq!(take(&mut bytes(b'C', body)), Ok(Some(expected)));
    }

    #[test]
    fn the_fork_servers_messages_are_read() {
        let body = [&[7; 16][..], &[1, 2, 0, 0]].concat();
        assert_eq!(take(&mut bytes(b'H', &body)), Ok(Some(Message::Hello { token: [7; 16], process: 513 })));
        let listening = Message::Listening { token: [7; 16], name: vec![1, 2, 0, 0] };
        assert_eq!(take(&mut bytes(b'L', &body)), Ok(Some(listening)));
        assert_eq!(take(&mut bytes(b'E', b"null")), Ok(Some(Message::Ended(None))));
        assert_eq!(take(&mut bytes(b'E', b"1792")), Ok(Some(Message::Ended(Some(1792)))));
        assert_eq!(take(&mut bytes(b'F', b"no memory")), Ok(Some(Message::Refused("no memory".to_owned()))));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cases: [(Vec<u8>, &str); 11] = [
            (bytes(b'H', &[0; 19]), "hello"),
            (bytes(b'L', &[0; 15]), "cut short"),
            (bytes(b'E', b"1.5"), "cannot be read"),
            (bytes(b'X', b"1"), "unknown kind 88"),
            (vec![b'O', 255, 255, 255, 255], "4294967295 bytes"),
            (bytes(b'O', &[255]), "no text"),
            (bytes(b'B', b"[-1]"), "cannot be read"),
            (bytes(b'D', b"{}"), "cannot be read"),
            (bytes(b'D', &[b'['; 5_000]), "cannot be read"),
            (bytes(b'C', br#"{"call":0,"name":"f","args":[{"$x":1}],"kwargs":[]}"#), "no value"),
            (bytes(b'C', br#"{"call":0,"name":"f","args":[],"kwargs":[["a",1],["a",2]]}"#), "twice"),
        ];
        for (mut buffer, expected) in cases {
            let error = take(&mut buffer).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
