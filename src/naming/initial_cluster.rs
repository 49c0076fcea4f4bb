//! `--initial-cluster`: the members that begin a new cluster, and whether this
//! member fits among them.
//!
//! Owns the checks that etcd makes before it makes a first entry, with its
//! texts. Two spellings of one address agree; a name and an address agree when
//! the name has that address. **Never** asks the members themselves.

use super::urls::{Scheme, Url, UrlError, join};
use crate::env::resolve;
use std::collections::{BTreeMap, BTreeSet};

/// Name of each member and its peer URLs, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster {
    pub members: BTreeMap<String, Vec<Url>>,
    text: String,
}

/// Why a new member cannot begin with these flags; the texts are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitialClusterError {
    #[error("error setting up initial cluster: {0}")]
    Url(#[from] UrlError),
    #[error("error setting up initial cluster: empty name given for {0:?}")]
    NoName(String),
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    NoLocalName(String),
    #[error("initial cluster {0} has duplicate url")]
    DuplicateUrl(String),
    #[error(
        "--initial-cluster has {name}={url} but missing from --initial-advertise-peer-urls={advertised} (resolved urls: {first:?} != {second:?})"
    )]
    NotAdvertised { name: String, url: String, advertised: String, first: String, second: String },
    #[error(
        "--initial-advertise-peer-urls has {url} but missing from --initial-cluster={name}={listed} (resolved urls: {first:?} != {second:?})"
    )]
    NotListed { name: String, url: String, listed: String, first: String, second: String },
}

impl InitialCluster {
    /// Parses `name=url,name=url,...`; a name may come with several URLs.
    pub fn parse(text: &str) -> Result<InitialCluster, InitialClusterError> {
        let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, url) = pair.split_once('=').unwrap_or((pair, ""));
            let url: Url = url.parse()?;
            if name.is_empty() {
                return Err(InitialClusterError::NoName(url.to_string()));
            }
            members.entry(name.to_owned()).or_default().push(url);
        }
        for urls in members.values_mut() {
            urls.sort();
        }
        let pairs =
            members.iter().flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")));
        let text = pairs.collect::<Vec<_>>().join(",");
        Ok(InitialCluster { members, text })
    }

    /// Checks that member `name`, which advertises these URLs, is one of us.
    pub async fn verify(&self, name: &str, advertised: &[Url]) -> Result<(), InitialClusterError> {
        let Some(listed) = self.members.get(name) else {
            return Err(InitialClusterError::NoLocalName(name.to_owned()));
        };
        let mut seen = BTreeSet::new();
        for url in self.members.values().flatten() {
            if !seen.insert(url.meaning()) {
                return Err(InitialClusterError::DuplicateUrl(self.text.clone()));
            }
        }
        // Names are resolved only when the spellings differ: the network may not be up yet.
        if meanings(listed) == meanings(advertised) {
            return Ok(());
        }
        let (there, here) = (resolved(listed).await, resolved(advertised).await);
        let first_of = |urls: &[Url], at: usize| urls.get(at).map_or(String::new(), Url::to_string);
        for (at, url) in listed.iter().enumerate() {
            if !here.contains(&there[at]) {
                return Err(InitialClusterError::NotAdvertised {
                    name: name.to_owned(),
                    url: url.to_string(),
                    advertised: join(advertised),
                    first: first_of(advertised, at.min(advertised.len().saturating_sub(1))),
                    second: url.to_string(),
                });
            }
        }
        for (at, url) in advertised.iter().enumerate() {
            if !there.contains(&here[at]) {
                return Err(InitialClusterError::NotListed {
                    name: name.to_owned(),
                    url: url.to_string(),
                    listed: join(listed),
                    first: url.to_string(),
                    second: first_of(listed, at.min(listed.len().saturating_sub(1))),
                });
            }
        }
        Ok(())
    }

    /// As [`crate::members::Members::bootstrap`] takes them.
    pub fn for_members(&self) -> Vec<(String, Vec<String>)> {
        let texts = |urls: &Vec<Url>| urls.iter().map(Url::to_string).collect();
        self.members.iter().map(|(name, urls)| (name.clone(), texts(urls))).collect()
    }
}

fn meanings(urls: &[Url]) -> BTreeSet<(Scheme, String, String)> {
    urls.iter().map(Url::meaning).collect()
}

/// The meaning of each URL with its host name replaced by its first address;
/// a name that has none, and `localhost`, stay as they are.
async fn resolved(urls: &[Url]) -> Vec<(Scheme, String, String)> {
    let mut meanings = Vec::with_capacity(urls.len());
    for url in urls {
        let (scheme, mut host, port) = url.meaning();
        if url.ip().is_none() && host != "localhost" {
            let addresses = resolve::addresses(&url.authority()).await.unwrap_or_default();
            if let Some(first) = addresses.iter().map(|address| address.ip()).min() {
                host = first.to_string();
            }
        }
        meanings.push((scheme, host, port));
    }
    meanings
}

#[cfg(test)]
mod tests {
    use super::super::urls::parse_list;
    use super::*;

    /// `want`: the error's text, or "fine".
    async fn check(cluster: &str, name: &str, advertised: &str, want: &str) {
        let verified = match InitialCluster::parse(cluster) {
            Ok(cluster) => cluster.verify(name, &parse_list(advertised).unwrap()).await,
            Err(error) => Err(error),
        };
        let got = verified.map_err(|error| error.to_string());
        assert_eq!(got.err().as_deref().unwrap_or("fine"), want, "{cluster}");
    }

    #[tokio::test]
    async fn a_member_fits_into_its_cluster() {
        check("a=http://10.0.0.1:1,b=http://10.0.0.2:1", "a", "http://10.0.0.1:1", "fine").await;
        check("a=http://[0:0:0:0:0:0:0:1]:1", "a", "http://[::1]:1", "fine").await;
        check("a=http://n1:1, b=http://n2:1", "b", "http://n2:1", "fine").await;
        check("a=http://10.0.0.1:1,a=http://10.0.0.1:2", "a", "http://10.0.0.1:2,http://10.0.0.1:1", "fine")
            .await;
    }

    #[tokio::test]
    async fn mistakes_have_the_texts_of_etcd() {
        check(
            "foo",
            "foo",
            "http://10.0.0.1:1",
            "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: ",
        )
        .await;
        check(
            "a=ftp://x:1",
            "a",
            "http://10.0.0.1:1",
            "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: ftp://x:1",
        )
        .await;
        check(
            "a=http://10.0.0.1:1",
            "b",
            "http://10.0.0.1:1",
            "couldn't find local name \"b\" in the initial cluster configuration",
        )
        .await;
        check(
            "a=http://10.0.0.1:1,b=http://10.0.0.1:1",
            "a",
            "http://10.0.0.1:1",
            "initial cluster a=http://10.0.0.1:1,b=http://10.0.0.1:1 has duplicate url",
        )
        .await;
        check(
            "a=http://localhost:1",
            "a",
            "http://127.0.0.1:1",
            "--initial-cluster has a=http://localhost:1 but missing from --initial-advertise-peer-urls=http://127.0.0.1:1 (resolved urls: \"http://127.0.0.1:1\" != \"http://localhost:1\")",
        )
        .await;
        check(
            "a=http://10.0.0.1:1",
            "a",
            "http://10.0.0.1:1,http://10.0.0.9:1",
            "--initial-advertise-peer-urls has http://10.0.0.9:1 but missing from --initial-cluster=a=http://10.0.0.1:1 (resolved urls: \"http://10.0.0.9:1\" != \"http://10.0.0.1:1\")",
        )
        .await;
    }

    #[test]
    fn names_keep_all_their_urls() {
        let cluster = InitialCluster::parse("b=http://y:1,a=http://x:2,a=http://x:1").unwrap();
        let want: Vec<(String, Vec<String>)> = vec![
            ("a".to_owned(), vec!["http://x:1".to_owned(), "http://x:2".to_owned()]),
            ("b".to_owned(), vec!["http://y:1".to_owned()]),
        ];
        assert_eq!(cluster.for_members(), want);
    }
}
