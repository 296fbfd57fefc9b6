//! Messages as mail programs keep them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use mail_parser::mailbox::mbox::MessageIterator;
use mail_parser::{Address, MessageParser};

use super::{data_error, entries};
use crate::EnvError;
use crate::mail::mailbox::MailboxBuilder;
use crate::mail::message::Email;

/// Reads an mbox file. Messages without a sender or a date are counted, not taken.
pub(super) fn mbox(file: &Path, builder: &mut MailboxBuilder) -> Result<(), EnvError> {
    let opened = File::open(file).map_err(|error| data_error(file, error))?;
    let mut reader = BufReader::new(opened);
    let start = reader.fill_buf().map_err(|error| data_error(file, error))?;
    if !start.starts_with(b"From ") {
        return Err(data_error(file, "an mbox file begins with a line that begins with `From `"));
    }
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("mbox").to_owned();
    for (index, message) in MessageIterator::new(reader).enumerate() {
        let message = message.map_err(|error| data_error(file, format!("message {}: {error}", index + 1)))?;
        take(message.contents(), format!("{name}:{}", index + 1), builder);
    }
    Ok(())
}

/// Reads a folder whose files are messages. In a maildir (any folder with `cur` or `new`) only those two hold mail.
pub(super) fn folder(root: &Path, builder: &mut MailboxBuilder) -> Result<(), EnvError> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    for file in files {
        let raw = fs::read(&file).map_err(|error| data_error(&file, error))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        take(&raw, name, builder);
    }
    Ok(())
}

/// The messages below a folder, by name.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), EnvError> {
    let inside = entries(folder)?;
    let is_maildir = ["cur", "new"].iter().any(|part| folder.join(part).is_dir());
    for path in inside {
        let hidden = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'));
        if path.is_dir() {
            // `tmp` holds what is still being delivered.
            let unfinished = is_maildir && path.ends_with("tmp");
            if !unfinished {
                collect(&path, files)?;
            }
        } else if !is_maildir && !hidden {
            files.push(path);
        }
    }
    Ok(())
}

fn take(raw: &[u8], name: String, builder: &mut MailboxBuilder) {
    match email(raw, name) {
        Some(email) => builder.push(email),
        None => builder.incomplete(),
    }
}

/// A mail from a message, unless it lacks a sender or a date.
fn email(raw: &[u8], name: String) -> Option<Email> {
    let message = MessageParser::default().parse(raw)?;
    let date = message.date().filter(|date| date.is_valid())?;
    let date = Timestamp::from_second(date.to_timestamp()).ok()?;
    let from_address = addresses(message.from()).into_iter().next()?;
    let message_id = match message.message_id() {
        Some(id) => format!("<{id}>"),
        // Its own bytes name a message that has no id.
        None => format!("<{}@no-id>", &blake3::hash(raw).to_hex()[..32]),
    };
    let body: Vec<String> = (0..message.text_body_count())
        .filter_map(|part| message.body_text(part))
        .map(|text| text.into_owned())
        .collect();
    Some(Email {
        message_id,
        date: date.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        subject: message.subject().unwrap_or("").to_owned(),
        from_address,
        to_addresses: addresses(message.to()),
        cc_addresses: addresses(message.cc()),
        bcc_addresses: addresses(message.bcc()),
        body: body.join("\n").replace("\r\n", "\n"),
        file_name: Some(name),
    })
}

fn addresses(header: Option<&Address<'_>>) -> Vec<String> {
    let all = header.into_iter().flat_map(|header| header.iter());
    all.filter_map(|one| one.address()).map(str::to_owned).collect()
}
