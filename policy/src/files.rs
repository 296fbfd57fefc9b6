//! Files of a model folder: read whole, written beside their place and renamed into it.

use crate::PolicyError;
use std::io::Write;
use std::path::Path;

pub(crate) fn read(dir: &Path, name: &'static str) -> Result<Vec<u8>, PolicyError> {
    if !dir.is_dir() {
        return Err(PolicyError::Missing { what: "model folder", path: dir.to_owned() });
    }
    let path = dir.join(name);
    std::fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => PolicyError::Missing { what: name, path },
        _ => PolicyError::File { action: "read", path, source },
    })
}

/// As [`read`], for a file that another file of the folder names.
pub(crate) fn read_named(dir: &Path, name: &str) -> Result<Vec<u8>, PolicyError> {
    let path = dir.join(name);
    std::fs::read(&path).map_err(|source| PolicyError::File { action: "read", path, source })
}

/// A file that need not be there.
pub(crate) fn read_optional(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, PolicyError> {
    let path = dir.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PolicyError::File { action: "read", path, source }),
    }
}

/// After this returns, the file has either its old or its new content, whatever happens to the process.
pub(crate) fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), PolicyError> {
    let fault = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PolicyError::File { action, path, source }
    };
    std::fs::create_dir_all(dir).map_err(fault("create", dir))?;
    let (path, temporary) = (dir.join(name), dir.join(format!(".{name}.new")));
    let mut file = std::fs::File::create(&temporary).map_err(fault("create", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(fault("write", &temporary))?;
    std::fs::rename(&temporary, &path).map_err(fault("write", &path))?;
    let folder = std::fs::File::open(dir).map_err(fault("open", dir))?;
    folder.sync_all().map_err(fault("write", dir))
}
