//! A snapshot of a served store on its way to a client, in either form.

use super::{Error, EtcdFile, OwnFile, Part, StoreView};
use crate::store::Store;
use std::{fmt, str::FromStr};

/// What a snapshot is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// etcd's: a bbolt file.
    #[default]
    Etcd,
    /// Ours: the pages of the store; see `own_file.rs`.
    Quorate,
}

impl Form {
    /// As the flag names them.
    pub const NAMES: [&str; 2] = ["etcd", "quorate"];
}

impl FromStr for Form {
    type Err = String;

    fn from_str(name: &str) -> Result<Form, String> {
        match name {
            "etcd" => Ok(Form::Etcd),
            "quorate" => Ok(Form::Quorate),
            _ => Err(format!("invalid value {name:?}")),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Form::NAMES[*self as usize])
    }
}

/// A snapshot being made. Nobody waits for it; dropping it ends it.
pub enum Outgoing {
    Etcd(Box<EtcdFile<StoreView>>),
    Own(Box<OwnFile>),
}

impl Outgoing {
    /// The store with everything that is applied now.
    pub async fn take(store: &Store, form: Form) -> Result<Outgoing, Error> {
        Ok(match form {
            Form::Etcd => {
                let view = StoreView::new(store).await?;
                Outgoing::Etcd(Box::new(EtcdFile::plan(&view).await?))
            }
            Form::Quorate => {
                let reader = store.snapshot_from(store.applied().0).await?;
                Outgoing::Own(Box::new(OwnFile::plan(reader).await?))
            }
        })
    }

    /// Bytes that were not handed out yet, the digest left out.
    pub fn remaining(&self) -> u64 {
        match self {
            Outgoing::Etcd(file) => file.remaining(),
            Outgoing::Own(file) => file.remaining(),
        }
    }

    /// The next part; `None` behind the digest.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        match self {
            Outgoing::Etcd(file) => file.next().await,
            Outgoing::Own(file) => file.next().await,
        }
    }
}
