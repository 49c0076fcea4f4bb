//! The names of one simulated disk: what a process sees, what survives, and what lies between.
//!
//! Promises: a name that was made, renamed or removed is durable once its
//! directory was synced; until then a power loss keeps any subset.
//! **Never** holds bytes.

use super::image::Keep;
use crate::dice::Dice;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    File(u64),
    Dir,
}

type Tree = BTreeMap<PathBuf, Entry>;

/// Names by absolute path. `/` is always there.
#[derive(Clone, Debug, Default)]
pub struct Names {
    readable: Tree,
    durable: Tree,
    /// Changes of single names, oldest first.
    pending: Vec<(PathBuf, Option<Entry>)>,
}

impl Names {
    pub fn get(&self, path: &Path) -> Option<Entry> {
        if path == Path::new("/") { Some(Entry::Dir) } else { self.readable.get(path).copied() }
    }

    fn set(&mut self, path: &Path, to: Option<Entry>) {
        match to {
            Some(entry) => drop(self.readable.insert(path.to_owned(), entry)),
            None => drop(self.readable.remove(path)),
        }
        self.pending.push((path.to_owned(), to));
    }

    fn require_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        match self.get(parent) {
            Some(Entry::Dir) => Ok(()),
            Some(Entry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// A new file's name.
    pub fn create(&mut self, path: &Path, inode: u64) -> io::Result<()> {
        self.require_parent(path)?;
        if self.get(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.set(path, Some(Entry::File(inode)));
        Ok(())
    }

    pub fn file(&self, path: &Path) -> io::Result<u64> {
        match self.get(path) {
            Some(Entry::File(inode)) => Ok(inode),
            Some(Entry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Renames a file, over another one if there is one.
    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.file(from)?;
        self.require_parent(to)?;
        if self.get(to) == Some(Entry::Dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.set(from, None);
        self.set(to, Some(Entry::File(inode)));
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.file(path)?;
        self.set(path, None);
        Ok(())
    }

    pub fn make_dir(&mut self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|dir| self.get(dir).is_none()).collect();
        for dir in missing.into_iter().rev() {
            self.require_parent(dir)?;
            self.set(dir, Some(Entry::Dir));
        }
        if self.get(path) == Some(Entry::Dir) { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    pub fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.set(path, None);
        Ok(())
    }

    /// Names in a directory, sorted.
    pub fn list(&self, path: &Path) -> io::Result<Vec<(String, Entry)>> {
        match self.get(path) {
            Some(Entry::Dir) => {}
            Some(Entry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let mut names: Vec<_> = self
            .readable
            .iter()
            .filter(|(name, _)| name.parent() == Some(path))
            .filter_map(|(name, entry)| Some((name.file_name()?.to_str()?.to_owned(), *entry)))
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    pub fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        if self.get(path) != Some(Entry::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let Names { durable, pending, .. } = self;
        pending.retain(|(name, to)| {
            let here = name.parent() == Some(path);
            if here {
                settle(durable, name, *to);
            }
            !here
        });
        Ok(())
    }

    /// The power fails: unsynced names are there in part.
    pub fn lose_power(&mut self, keep: Keep, dice: &mut Dice) {
        let pending = std::mem::take(&mut self.pending);
        let prefix = match keep {
            Keep::Prefix => dice.between(0, pending.len() as u64) as usize,
            _ => pending.len(),
        };
        for (name, to) in &pending[..prefix] {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::Everything | Keep::Prefix => true,
                Keep::Subset => dice.chance(0.5),
            };
            if kept {
                settle(&mut self.durable, name, *to);
            }
        }
        // A name in a directory that is not there is not there. Parents sort before children.
        let mut whole = Tree::new();
        for (name, entry) in &self.durable {
            let parent = name.parent().expect("the root is never stored");
            if parent == Path::new("/") || whole.get(parent) == Some(&Entry::Dir) {
                whole.insert(name.clone(), *entry);
            }
        }
        self.durable.clone_from(&whole);
        self.readable = whole;
    }

    /// A directory and everything in it, gone at once and for good.
    pub fn forget(&mut self, directory: &Path) {
        self.readable.retain(|name, _| !name.starts_with(directory));
        self.durable.retain(|name, _| !name.starts_with(directory));
        self.pending.retain(|(name, _)| !name.starts_with(directory));
    }

    /// Whether a file may be reached by some name now or after a crash.
    pub fn holds(&self, inode: u64) -> bool {
        let this = Entry::File(inode);
        self.readable.values().chain(self.durable.values()).any(|entry| *entry == this)
            || self.pending.iter().any(|(_, to)| *to == Some(this))
    }

    /// Files that have a name now, in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = (&PathBuf, u64)> {
        self.readable.iter().filter_map(|(name, entry)| match entry {
            Entry::File(inode) => Some((name, *inode)),
            Entry::Dir => None,
        })
    }
}

fn settle(tree: &mut Tree, name: &Path, to: Option<Entry>) {
    match to {
        Some(entry) => drop(tree.insert(name.to_owned(), entry)),
        None => drop(tree.remove(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &Names, dir: &str) -> Vec<String> {
        names.list(Path::new(dir)).map_or(vec![], |list| list.into_iter().map(|(name, _)| name).collect())
    }

    fn with_dir() -> Names {
        let mut names = Names::default();
        names.make_dir(Path::new("/d")).unwrap();
        names.sync_dir(Path::new("/")).unwrap();
        names
    }

    #[test]
    fn names_last_once_their_directory_is_synced() {
        let mut names = with_dir();
        names.create(Path::new("/d/a"), 1).unwrap();
        names.sync_dir(Path::new("/d")).unwrap();
        names.create(Path::new("/d/b"), 2).unwrap();
        names.rename(Path::new("/d/a"), Path::new("/d/c")).unwrap();
        assert_eq!(listed(&names, "/d"), ["b", "c"]);
        let mut kept = names.clone();
        names.lose_power(Keep::Nothing, &mut Dice::new("names", 1));
        assert_eq!(listed(&names, "/d"), ["a"]);
        kept.lose_power(Keep::Everything, &mut Dice::new("names", 1));
        assert_eq!(listed(&kept, "/d"), ["b", "c"]);
    }

    #[test]
    fn a_lost_directory_takes_what_is_in_it() {
        let mut names = with_dir();
        names.make_dir(Path::new("/d/e/f")).unwrap();
        names.create(Path::new("/d/e/f/x"), 1).unwrap();
        names.sync_dir(Path::new("/d/e/f")).unwrap();
        names.sync_dir(Path::new("/d/e")).unwrap();
        let mut synced = names.clone();
        names.lose_power(Keep::Nothing, &mut Dice::new("names", 1));
        assert_eq!(listed(&names, "/d"), Vec::<String>::new());
        assert!(!names.holds(1));
        synced.sync_dir(Path::new("/d")).unwrap();
        synced.lose_power(Keep::Nothing, &mut Dice::new("names", 1));
        assert_eq!(listed(&synced, "/d/e/f"), ["x"]);
    }

    #[test]
    fn errors_are_those_of_an_operating_system() {
        use io::ErrorKind::*;
        let mut names = with_dir();
        names.create(Path::new("/d/a"), 1).unwrap();
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(names.create(Path::new("/d/a"), 2)), AlreadyExists);
        assert_eq!(kind(names.create(Path::new("/x/a"), 2)), NotFound);
        assert_eq!(kind(names.remove(Path::new("/d/z"))), NotFound);
        assert_eq!(kind(names.remove_dir(Path::new("/d"))), DirectoryNotEmpty);
        assert_eq!(kind(names.list(Path::new("/z")).map(drop)), NotFound);
        assert_eq!(kind(names.make_dir(Path::new("/d/a/b"))), NotADirectory);
    }

    #[test]
    fn a_subset_loses_some_and_keeps_some() {
        let mut dice = Dice::new("names", 3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..60 {
            let mut names = with_dir();
            names.create(Path::new("/d/a"), 1).unwrap();
            names.create(Path::new("/d/b"), 2).unwrap();
            names.lose_power(Keep::Subset, &mut dice);
            seen.insert(listed(&names, "/d"));
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
