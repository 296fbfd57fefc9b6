//! An HTTP server that answers as a test says, faults included. Requests are read whole; every answer closes its connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Value,
}

/// What is answered.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A status and a body.
    Status(u16, String),
    /// A status with a header line.
    With(u16, &'static str, String),
    /// Events of a stream, each one JSON; then the connection ends.
    Events(Vec<Value>),
    /// The beginning of an answer that says it is longer.
    CutShort(String),
    /// Nothing, and the connection closes.
    HangUp,
    /// Nothing, and the connection stays open.
    Silence,
    /// The answer after a while.
    Late(Duration, Box<Reply>),
}

impl Reply {
    pub(crate) fn json(value: &Value) -> Reply {
        Reply::Status(200, value.to_string())
    }
}

/// A server of its own on a free port of this machine; it ends with the test.
pub(crate) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// A server that answers each request with what `answer` gives for it and for how many came before to the same path.
    pub(crate) fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (answer, seen, ended) = (Arc::new(answer), Arc::clone(&requests), Arc::clone(&stop));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, seen, ended) = (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&ended));
                // A client that went away is no matter of the server's.
                thread::spawn(move || stream.and_then(|stream| serve(stream, &*answer, &seen, &ended)));
            }
        });
        Server { port, requests, stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|request| request.path == path).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener, so that its thread sees that it is to end.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn serve(
    stream: TcpStream,
    answer: &dyn Fn(&Request, usize) -> Reply,
    seen: &Mutex<Vec<Request>>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
        headers.push(line.trim().to_owned());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = Request { path, headers, body: serde_json::from_slice(&body).unwrap_or_default() };
    let before = {
        let mut seen = seen.lock().unwrap();
        let before = seen.iter().filter(|other| other.path == request.path).count();
        seen.push(request.clone());
        before
    };
    write(stream, answer(&request, before), stop)
}

fn write(mut stream: TcpStream, reply: Reply, stop: &AtomicBool) -> std::io::Result<()> {
    match reply {
        Reply::Status(status, body) => whole(&mut stream, status, "X-None: 1", &body),
        Reply::With(status, header, body) => whole(&mut stream, status, header, &body),
        Reply::Events(events) => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
            for event in events {
                write!(stream, "data: {event}\n\n")?;
                stream.flush()?;
            }
            Ok(())
        }
        Reply::CutShort(body) => {
            let promised = body.len() + 1000;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {promised}\r\nConnection: close\r\n\r\n{body}")?;
            stream.flush()
        }
        Reply::HangUp => Ok(()),
        Reply::Silence => {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        Reply::Late(wait, reply) => {
            thread::sleep(wait);
            write(stream, *reply, stop)
        }
    }
}

fn whole(stream: &mut TcpStream, status: u16, header: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\n{header}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    stream.flush()
}
