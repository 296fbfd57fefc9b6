//! An HTTP server that answers as a test says, faults included: policies, judges and search services behind one.
//!
//! Requests are read whole, each connection serves one, and connections are served side by side.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "support of tests: what fails here fails the test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// Such as `POST`.
    pub method: String,
    /// The address behind the host, with its query.
    pub path: String,
    /// Header lines as they came.
    pub headers: Vec<String>,
    /// The body; null if it is no JSON.
    pub body: Value,
}

impl Request {
    /// A header's value, by its name in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Reply {
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
    /// A good answer.
    #[must_use]
    pub fn json(value: &Value) -> Reply {
        Reply::Status(200, value.to_string())
    }

    /// The same after a while.
    #[must_use]
    pub fn late(self, wait: Duration) -> Reply {
        Reply::Late(wait, Box::new(self))
    }
}

/// What a server has seen.
#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request>>,
    now: AtomicUsize,
    most: AtomicUsize,
    stop: AtomicBool,
}

type Answer = dyn Fn(&Request, usize) -> Reply + Send + Sync;

/// A server of its own on a free port of this machine; it ends with the test.
pub struct Server {
    port: u16,
    seen: Arc<Seen>,
}

impl Server {
    /// A server that answers each request with what `answer` gives for it and for how many came before to the same path.
    #[must_use]
    pub fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Seen> = Arc::default();
        let (answer, noted): (Arc<Answer>, _) = (Arc::new(answer), Arc::clone(&seen));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if noted.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
                // A client that went away is no matter of the server's.
                thread::spawn(move || stream.and_then(|stream| serve(stream, &*answer, &noted)));
            }
        });
        Server { port, seen }
    }

    /// A server that gives these replies in turn, whatever is asked, and the last one again and again.
    #[must_use]
    pub fn scripted(replies: Vec<Reply>) -> Server {
        let asked = AtomicUsize::new(0);
        Server::start(move |_, _| {
            let at = asked.fetch_add(1, Ordering::SeqCst);
            replies.get(at).or(replies.last()).cloned().unwrap_or(Reply::HangUp)
        })
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All requests so far, in the order in which they were read.
    #[must_use]
    pub fn all(&self) -> Vec<Request> {
        self.seen.requests.lock().unwrap().clone()
    }

    /// The requests to a path so far.
    #[must_use]
    pub fn requests(&self, path: &str) -> Vec<Request> {
        self.all().into_iter().filter(|request| request.path == path).collect()
    }

    /// The most requests that were being answered at a time.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.seen.most.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        // Wakes the listener, so that its thread sees that it is to end.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn serve(stream: TcpStream, answer: &Answer, seen: &Seen) -> std::io::Result<()> {
    let request = read(&stream)?;
    let before = {
        let mut requests = seen.requests.lock().unwrap();
        let before = requests.iter().filter(|other| other.path == request.path).count();
        requests.push(request.clone());
        before
    };
    seen.most.fetch_max(seen.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    let written = write(stream, answer(&request, before), seen);
    seen.now.fetch_sub(1, Ordering::SeqCst);
    written
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, path, headers: Vec::new(), body: Value::Null };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        request.headers.push(line.trim().to_owned());
    }
    let length = request.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    request.body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(request)
}

fn write(mut stream: TcpStream, reply: Reply, seen: &Seen) -> std::io::Result<()> {
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
            while !seen.stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        Reply::Late(wait, reply) => {
            thread::sleep(wait);
            write(stream, *reply, seen)
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
