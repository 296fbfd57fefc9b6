//! What the manifest counts, against what the pass found.

use std::collections::BTreeSet;

use super::Scan;
use crate::frame::{StreamKey, stream_key, stream_of_key};
use crate::id::{Seq, Stream};
use crate::manifest::Manifest;
use crate::report::{Finding, FindingClass};
use crate::source::Head;

impl Scan {
    /// Compares what lies before the manifest's mark with the manifest, once.
    pub(super) fn compare_manifest(&mut self) {
        let Some(manifest) = self.manifest.take() else { return };
        if std::mem::take(&mut self.trusts) {
            self.doubts |= self.end < manifest.mark || !self.adopt_heads(&manifest);
            return;
        }
        if self.end < manifest.mark {
            // What is appended from now on must lie behind the mark.
            self.next_file = Some(self.end.file.max(manifest.mark.file).saturating_add(1));
        }
        for (stream, counted) in &manifest.heads {
            self.compare_head(*stream, *counted);
        }
        let counted: BTreeSet<StreamKey> = manifest.heads.iter().map(|(stream, _)| stream_key(*stream)).collect();
        let extra: Vec<StreamKey> = self.heads.keys().filter(|key| !counted.contains(*key)).copied().collect();
        for stream in extra.iter().filter_map(|key| stream_of_key(key)) {
            let detail = "the manifest does not know this stream, whose events are older than it".to_owned();
            let mut finding = Finding::new(FindingClass::ManifestDisagreement, detail);
            finding.stream = Some(stream);
            self.findings.push(finding);
        }
    }

    /// Takes over the digests of the manifest, if its streams and counts are those that were found.
    fn adopt_heads(&mut self, manifest: &Manifest) -> bool {
        let agrees = |(stream, counted): &(Stream, Head)| {
            self.heads.get(&stream_key(*stream)).is_some_and(|head| head.count == counted.count)
        };
        if manifest.heads.len() != self.heads.len() || !manifest.heads.iter().all(agrees) {
            return false;
        }
        self.heads = manifest.heads.iter().map(|(stream, head)| (stream_key(*stream), *head)).collect();
        true
    }

    fn compare_head(&mut self, stream: Stream, counted: Head) {
        let key = stream_key(stream);
        let head = self.heads.get(&key).copied().unwrap_or(Head::EMPTY);
        let damaged = self.findings.iter().any(|finding| finding.is_damage() && finding.stream == Some(stream));
        if head.count < counted.count {
            self.note_gap(stream, head.count, counted.count);
            // The numbers stay taken, so that the loss stays visible.
            self.heads.insert(key, counted);
            self.unlinked.insert(key);
            return;
        }
        if self.unlinked.contains(&key) && head.count == counted.count {
            // Its last event is lost and told of; what was behind it is known from here alone.
            self.heads.insert(key, counted);
            return;
        }
        if damaged && head.count == counted.count {
            // The content chain cannot be computed over a hole.
            self.heads.insert(key, Head { content: counted.content, ..head });
        }
        let wrong = if head.count > counted.count {
            format!("the journal holds {} events where the manifest counts {}", head.count, counted.count)
        } else if head.chain != counted.chain {
            "the last event is not the one that the manifest names: it was exchanged".to_owned()
        } else if head.content != counted.content && !damaged {
            "the content digest is not the one in the manifest".to_owned()
        } else {
            return;
        };
        self.found(FindingClass::ManifestDisagreement, stream, Seq(head.count.saturating_sub(1)), None, wrong);
    }
}
