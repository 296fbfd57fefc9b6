//! A file layer that keeps written and durable bytes apart, fails or stops at a chosen operation, and then shows what a
//! power cut may have left.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rao_store::files::{Files, JournalFile, ReadFile};

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The machine stops before it.
    CrashBefore,
    /// The machine stops half-way through it.
    CrashTorn,
    /// The machine stops after it, before the caller learns of it.
    CrashAfter,
    /// It fails half-way with this error, and the machine goes on.
    Fail(io::ErrorKind),
}

/// How much of what was not yet durable survives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Survival {
    /// Nothing.
    Durable,
    /// All of it.
    Written,
    /// The first half of it.
    Half,
    /// Each small page or not, by a coin with this seed.
    Coin(u64),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    operations: u64,
    plan: Vec<(u64, Fault)>,
    crashed: bool,
    inodes: Vec<Inode>,
    live: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Operations on files with this in their path are neither counted nor failed.
    spared: Option<&'static str>,
    /// Directories in the order in which they were synced.
    synced: Vec<PathBuf>,
}

/// The second part is a gate: while a test holds it, appends wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultFiles(Arc<Mutex<State>>, Arc<Mutex<()>>);

#[derive(Debug)]
struct Handle {
    files: FaultFiles,
    inode: usize,
    spared: bool,
}

/// How far an operation gets.
#[derive(PartialEq)]
enum Extent {
    Half,
    Whole,
}

const PAGE: usize = 32;

fn stopped() -> io::Error {
    io::Error::other("the machine has stopped")
}

impl FaultFiles {
    pub(crate) fn with_plan(plan: &[(u64, Fault)]) -> Self {
        let files = FaultFiles::default();
        files.set_plan(plan);
        files
    }

    /// Lock it to hold up appends.
    pub(crate) fn gate(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.1)
    }

    /// Faults by operation number, counted from now.
    pub(crate) fn set_plan(&self, plan: &[(u64, Fault)]) {
        let mut state = self.0.lock().unwrap();
        let now = state.operations;
        state.plan = plan.iter().map(|(at, fault)| (now + at, *fault)).collect();
    }

    /// Puts a file there, durable, in place of what was.
    pub(crate) fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        if let Some(inode) = state.live.get(path).copied() {
            state.inodes[inode] = Inode { live: bytes.to_vec(), durable: bytes.to_vec() };
            return;
        }
        state.inodes.push(Inode { live: bytes.to_vec(), durable: bytes.to_vec() });
        let inode = state.inodes.len() - 1;
        state.live.insert(path.to_owned(), inode);
        state.durable.insert(path.to_owned(), inode);
    }

    /// Copies journal and manifest of a log from the real file system.
    pub(crate) fn copy_of(dir: &Path) -> Self {
        let files = FaultFiles::default();
        for name in ["journal/0000000000.log", "MANIFEST"] {
            files.put(&dir.join(name), &std::fs::read(dir.join(name)).unwrap());
        }
        files
    }

    /// Copies journal, archives and manifest of a log to another place here.
    pub(crate) fn copy_all(dir: &Path, to: &Path) -> Self {
        let files = FaultFiles::default();
        for folder in ["", "journal", "sealed"] {
            for entry in std::fs::read_dir(dir.join(folder)).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_file() && !path.ends_with("LOCK") {
                    files.put(&to.join(path.strip_prefix(dir).unwrap()), &std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    /// The directories that were synced, in order.
    pub(crate) fn synced(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap().synced.clone()
    }

    /// Every file there is.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap().live.keys().cloned().collect()
    }

    /// A file's bytes.
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        state.inodes[state.live[path]].live.clone()
    }

    /// Leaves the manifest out of the plan.
    pub(crate) fn spare(&self, part: &'static str) {
        self.0.lock().unwrap().spared = Some(part);
    }

    pub(crate) fn crashed(&self) -> bool {
        self.0.lock().unwrap().crashed
    }

    /// The file system that the next start finds.
    pub(crate) fn after_power_cut(&self, survival: Survival) -> FaultFiles {
        let state = self.0.lock().unwrap();
        let mut coin = Coin(match survival {
            Survival::Coin(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            _ => 0,
        });
        let names = match survival {
            Survival::Durable => state.durable.clone(),
            Survival::Half | Survival::Written => state.live.clone(),
            Survival::Coin(_) => {
                let mut names = state.durable.clone();
                names.retain(|path, _| state.live.contains_key(path) || coin.flip());
                let new = state.live.iter().filter(|(path, inode)| state.durable.get(*path) != Some(*inode));
                names.extend(new.filter(|_| coin.flip()).map(|(path, inode)| (path.clone(), *inode)));
                names
            }
        };
        let inodes = state.inodes.iter().map(|inode| {
            let bytes = match survival {
                Survival::Durable => inode.durable.clone(),
                Survival::Written => inode.live.clone(),
                Survival::Half => half(&inode.durable, &inode.live),
                Survival::Coin(_) => coin.mix(&inode.durable, &inode.live),
            };
            Inode { live: bytes.clone(), durable: bytes }
        });
        let survivor = State { inodes: inodes.collect(), live: names.clone(), durable: names, ..State::default() };
        FaultFiles(Arc::new(Mutex::new(survivor)), Arc::default())
    }

    /// Counts an operation and meets the fault planned for it.
    fn meet(&self, spared: bool, work: impl FnOnce(&mut State, Extent)) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.crashed {
            return Err(stopped());
        }
        if spared {
            work(&mut state, Extent::Whole);
            return Ok(());
        }
        let number = state.operations;
        state.operations += 1;
        let fault = state.plan.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        state.crashed = matches!(fault, Some(Fault::CrashBefore | Fault::CrashTorn | Fault::CrashAfter));
        match fault {
            None => work(&mut state, Extent::Whole),
            Some(Fault::CrashBefore) => return Err(stopped()),
            Some(Fault::CrashTorn) => {
                work(&mut state, Extent::Half);
                return Err(stopped());
            }
            Some(Fault::CrashAfter) => {
                work(&mut state, Extent::Whole);
                return Err(stopped());
            }
            Some(Fault::Fail(kind)) => {
                work(&mut state, Extent::Half);
                return Err(io::Error::from(kind));
            }
        }
        Ok(())
    }

    fn is_spared(&self, path: &Path) -> bool {
        let spared = self.0.lock().unwrap().spared;
        spared.is_some_and(|part| path.to_string_lossy().contains(part))
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        let state = self.0.lock().unwrap();
        if state.crashed {
            return Err(stopped());
        }
        state.live.get(path).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Files for FaultFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        // The lock file and sled live in the real directory.
        std::fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock().unwrap();
        let mut inside = state.live.keys().filter(|path| path.parent() == Some(dir)).peekable();
        if inside.peek().is_none() && !dir.exists() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(inside.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn JournalFile>> {
        let spared = self.is_spared(path);
        if self.inode(path).is_err() {
            self.meet(spared, |state, extent| {
                if extent == Extent::Whole {
                    state.inodes.push(Inode::default());
                    state.live.insert(path.to_owned(), state.inodes.len() - 1);
                }
            })?;
        }
        Ok(Box::new(Handle { files: self.clone(), inode: self.inode(path)?, spared }))
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(Handle { files: self.clone(), inode: self.inode(path)?, spared: false }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.meet(self.is_spared(from), |state, extent| {
            if extent == Extent::Whole
                && let Some(inode) = state.live.remove(from)
            {
                state.live.insert(to.to_owned(), inode);
            }
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inode(path)?;
        self.meet(self.is_spared(path), |state, extent| {
            if extent == Extent::Whole {
                state.live.remove(path);
            }
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.meet(false, |state, extent| {
            let inside = |path: &Path| path.parent() == Some(dir);
            if extent == Extent::Whole {
                state.synced.push(dir.to_owned());
                state.durable.retain(|path, _| !inside(path));
                let names: Vec<_> =
                    state.live.iter().filter(|(path, _)| inside(path)).map(|(p, i)| (p.clone(), *i)).collect();
                state.durable.extend(names);
            }
        })
    }
}

impl JournalFile for Handle {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        drop(self.files.gate().lock().unwrap());
        self.files.meet(self.spared, |state, extent| {
            let part = if extent == Extent::Half { &bytes[..bytes.len() / 2] } else { bytes };
            state.inodes[self.inode].live.extend_from_slice(part);
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.meet(self.spared, |state, extent| {
            let inode = &mut state.inodes[self.inode];
            if extent == Extent::Whole {
                inode.durable = inode.live.clone();
            } else if inode.live.starts_with(&inode.durable) {
                let half = inode.durable.len() + (inode.live.len() - inode.durable.len()) / 2;
                inode.durable = inode.live[..half].to_vec();
            }
        })
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.files.meet(self.spared, |state, extent| {
            if extent == Extent::Whole {
                state.inodes[self.inode].live.truncate(length as usize);
            }
        })
    }
}

impl ReadFile for Handle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.files.0.lock().unwrap();
        let live = &state.inodes[self.inode].live;
        let rest = live.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.files.0.lock().unwrap().inodes[self.inode].live.len() as u64)
    }
}

/// What was appended to the durable bytes, cut in the middle.
fn half(durable: &[u8], live: &[u8]) -> Vec<u8> {
    let end = durable.len() + live.len().saturating_sub(durable.len()) / 2;
    if live.starts_with(durable) { live[..end].to_vec() } else { durable.to_vec() }
}

struct Coin(u64);

impl Coin {
    fn flip(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 63 == 1
    }

    /// Durable bytes with some of the pages written over or behind them; pages that were lost read as zeros.
    fn mix(&mut self, durable: &[u8], live: &[u8]) -> Vec<u8> {
        let mut bytes = durable.to_vec();
        bytes.resize(if self.flip() { live.len() } else { durable.len() }, 0);
        for at in (0..live.len()).step_by(PAGE) {
            let end = (at + PAGE).min(live.len());
            if self.flip() && live.get(at..end) != durable.get(at..end) {
                // A page that was written extends the file at least to its own end.
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(&live[at..end]);
            }
        }
        bytes
    }
}
