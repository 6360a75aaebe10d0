//! A file of the machine's that a back end writes, as long as nothing else does.

use dimmer_host::journal::{Journal, JournalError};
use dimmer_host::root::{Root, RootError};
use dimmer_host::unavailable::Unavailable;

use super::cores::{LEFT_ALONE, explain};

/// A file, what it held at first, and what it held when its back end left it.
#[derive(Debug)]
pub(crate) struct OwnFile {
    /// The noun in refusals.
    what: &'static str,
    pub(crate) path: String,
    pub(crate) before: String,
    pub(crate) left: String,
}

impl OwnFile {
    pub(crate) fn new(what: &'static str, root: &Root, path: String) -> Result<Self, RootError> {
        let before = root.text(&path)?;
        Ok(Self { what, left: before.clone(), path, before })
    }

    /// Checks that nothing else has written the file.
    ///
    /// # Errors
    /// [`Unavailable`]: something has, or the file has vanished.
    pub(crate) fn check(&self, root: &Root) -> Result<(), Unavailable> {
        match root.text(&self.path) {
            Ok(found) if found == self.left => Ok(()),
            Ok(found) => Err(self
                .left_alone(format!("{} held `{}` and now holds `{found}`", self.path, self.left))),
            Err(error) => Err(self.left_alone(explain(&JournalError::Before(error)))),
        }
    }

    /// Writes this; `None` writes what the file held at first. The journal has it before.
    ///
    /// # Errors
    /// [`Unavailable`]: the journal cannot be written, or the kernel refuses.
    pub(crate) fn write(
        &self,
        journal: &mut Journal,
        wanted: Option<&str>,
    ) -> Result<(), Unavailable> {
        match journal.change(&self.path, wanted.unwrap_or(&self.before)) {
            // The kernel may round, also to what it had.
            Ok(()) | Err(JournalError::NotTaken { .. }) => Ok(()),
            Err(error) => Err(self.left_alone(explain(&error))),
        }
    }

    /// Notes what the file holds, as this back end leaves it.
    ///
    /// # Errors
    /// [`Unavailable`]: the file has vanished.
    pub(crate) fn note(&mut self, root: &Root) -> Result<(), Unavailable> {
        let found = root.text(&self.path);
        self.left =
            found.map_err(|error| self.left_alone(explain(&JournalError::Before(error))))?;
        Ok(())
    }

    fn left_alone(&self, why: String) -> Unavailable {
        Unavailable::new(self.what, why, LEFT_ALONE)
    }
}
