//! `docs/format.md` says what the program does: its size tables add up, its examples decode, and the program writes them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive::{ARCHIVE_VERSION, ArchiveReader, write_archive};
use rao_store::event::{Body, Kind, MAX_BODY, Note};
use rao_store::files::RealFiles;
use rao_store::{
    Digest, EventSource, Expected, FORMAT_VERSION, Filter, Frame, HEADER_LEN, Head, Log, Manifest, Mark, Options,
    Reader, RolloutId, RunId, Seq, Stream, chain_content,
};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/format.md")).unwrap()
}

/// The bytes of the code block marked with `name`.
fn example(page: &str, name: &str) -> Vec<u8> {
    let start = page.find(&format!("```text {name}\n")).unwrap_or_else(|| panic!("no example {name}"));
    let block = page[start..].split("```").nth(1).unwrap();
    let lines = block.lines().skip(1);
    let digits: String =
        lines.map(|line| line.split('|').next().unwrap()).collect::<String>().split_whitespace().collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Offsets and sizes of the table under the heading.
fn table(page: &str, heading: &str) -> Vec<(usize, usize)> {
    let section = page.split(heading).nth(1).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("| offset")).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
        })
        .collect()
}

fn assert_dense(table: &[(usize, usize)], total: usize) {
    let mut next = 0;
    for (offset, size) in table {
        assert_eq!(*offset, next);
        next += size;
    }
    assert_eq!(next, total);
}

#[test]
fn the_example_is_what_the_program_writes() {
    let page = page();
    let dir = tempfile::tempdir().unwrap();
    let stream = Stream::Rollout(RunId(std::array::from_fn(|i| i as u8)), RolloutId(3));
    let body: Body = Note { text: "hi".to_owned() }.into();
    let (log, _) = Log::open(dir.path(), Options::new(Arc::new(|| 1_700_000_000_000_000))).unwrap();
    log.append(stream, Expected::Exactly(Seq(0)), vec![body.clone()]).unwrap();
    log.close().unwrap();
    let journal = fs::read(dir.path().join("journal/0000000000.log")).unwrap();
    let manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    let hex = |bytes: &[u8]| {
        bytes
            .chunks(16)
            .map(|line| line.iter().map(|b| format!("{b:02x} ")).collect::<String>() + "\n")
            .collect::<String>()
    };
    assert!(example(&page, "frame") == journal, "the journal holds\n{}", hex(&journal));
    assert!(example(&page, "manifest") == manifest, "the manifest holds\n{}", hex(&manifest));
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let path = dir.path().join("example.raolog");
    write_archive(&RealFiles, &path, &reader, stream.run()).unwrap();
    let archive = fs::read(&path).unwrap();
    assert!(example(&page, "archive") == archive, "the archive holds\n{}", hex(&archive));
    fs::write(&path, example(&page, "archive")).unwrap();
    let decoded = ArchiveReader::open(&path).unwrap();
    let frames: Vec<Frame> = decoded.frames(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
    assert_eq!(frames.iter().map(|frame| frame.bytes().to_vec()).collect::<Vec<_>>(), vec![journal.clone()]);
    assert_eq!(decoded.head(stream), reader.head(stream));

    let frame = Frame::parse(journal.clone()).unwrap();
    assert_eq!((frame.address().stream, frame.address().seq), (stream, Seq(0)));
    assert_eq!((frame.kind().unwrap(), frame.layout(), frame.at_us()), (Kind::Note, 1, 1_700_000_000_000_000));
    assert_eq!(Body::decode(Kind::Note, 1, frame.body()).unwrap(), body);
    assert_eq!(frame.previous(), Digest([0; 32]));
    let head = Head {
        count: 1,
        chain: Digest::of(&journal),
        content: chain_content(Digest([0; 32]), Kind::Note, 1, frame.body()),
    };
    let decoded = Manifest::decode(&manifest).unwrap();
    assert_eq!(decoded.mark, Mark { file: 0, offset: journal.len() as u64 });
    assert_eq!(decoded.heads, vec![(stream, head)]);
    for digest in [head.chain, head.content] {
        assert!(page.contains(&digest.to_string()), "the page does not give the digest {digest}");
    }
}

#[test]
fn the_size_tables_add_up() {
    let page = page();
    assert_dense(&table(&page, "## Frame"), HEADER_LEN);
    assert_dense(&table(&page, "### Manifest head"), 28);
    assert_dense(&table(&page, "### Manifest entry"), 96);
    assert_dense(&table(&page, "### Event key"), 29);
    assert_dense(&table(&page, "### Archive entry"), 64);
    assert_dense(&table(&page, "### Dropped entry"), 40);
    assert_dense(&table(&page, "### Long texts"), 8);
    assert_dense(&table(&page, "then for each piece, in order"), 40);
    assert_dense(&table(&page, "### Shared beginnings"), 128);
    assert_dense(&table(&page, "### Archive head"), 12);
    assert_dense(&table(&page, "### Footer head"), 48);
    assert_dense(&table(&page, "### Segment entry"), 24);
    assert_dense(&table(&page, "### Piece entry"), 56);
    assert_dense(&table(&page, "### Block entry"), 24);
    assert_dense(&table(&page, "### Archive tail"), 48);
    assert!(page.contains(&format!("archive version: 1, or {ARCHIVE_VERSION} if")));
    assert!(page.contains(&format!("format version is {FORMAT_VERSION}")));
    assert!(page.contains(&format!("{MAX_BODY} bytes")));
}

#[test]
fn every_kind_is_listed_with_its_number() {
    let page = page();
    for kind in Kind::ALL {
        let row = format!("| {} | `{}` | {} |", kind.code(), kind.name(), if kind.is_content() { "yes" } else { "no" });
        assert!(page.contains(&row), "the page lacks the row {row}");
    }
}
