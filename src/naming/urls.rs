//! URLs as flags and members carry them: `scheme://host:port`, no path.
//!
//! Owns the one parser of such URLs and the texts of its errors (facts of
//! etcd's start-up). Keeps each URL as it was written, since member ids are
//! made of these very bytes (M1); compares them by meaning. **Never** resolves
//! names: that needs the network.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// What comes before `://`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

/// Why a text is no such URL; the texts end in the URL, as etcd's do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    #[error("URL address does not have the form \"host:port\": {0}")]
    Address(String),
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// Broken below the level of schemes and ports.
    #[error("parse {url:?}: {what}")]
    Syntax { url: String, what: String },
}

/// `scheme://host:port`, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    text: String,
    scheme: Scheme,
    /// Without the brackets of an IPv6 address; a path for unix sockets.
    host: String,
    /// Digits, not yet checked to be a port; empty for unix sockets.
    port: String,
}

impl Url {
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The port, if it is one.
    pub fn port(&self) -> Option<u16> {
        self.port.parse().ok()
    }

    /// The digits that stand for the port.
    pub fn port_text(&self) -> &str {
        &self.port
    }

    /// `host:port` for connecting; IPv6 addresses in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The address to bind to: an IP, or `localhost` as the IPv4 loopback.
    /// `None` for other names, unix sockets and numbers that are no port.
    pub fn bind_address(&self) -> Option<SocketAddr> {
        let ip = if self.host == "localhost" { IpAddr::from([127, 0, 0, 1]) } else { self.ip()? };
        Some(SocketAddr::new(ip, self.port()?))
    }

    /// The host, if it is an address rather than a name.
    pub fn ip(&self) -> Option<IpAddr> {
        // A zone (`fe80::1%eth0`) does not matter for being an address.
        self.host.split('%').next().unwrap_or_default().parse().ok()
    }

    /// Equal for two spellings of one URL: an IPv6 address may be written in
    /// several ways, a host name in either case.
    pub fn meaning(&self) -> (Scheme, String, String) {
        let host = match self.host.parse::<IpAddr>() {
            Ok(ip) => ip.to_string(),
            Err(_) => self.host.to_ascii_lowercase(),
        };
        (self.scheme, host, self.port.clone())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let text = text.trim();
        let syntax = |what: String| UrlError::Syntax { url: text.to_owned(), what };
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(syntax("net/url: invalid control character in URL".to_owned()));
        }
        let (scheme, rest) = split_scheme(text).map_err(|what| syntax(what.to_owned()))?;
        let authority_and_path = rest.strip_prefix("//");
        let (authority, path) = match authority_and_path {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", ""),
        };
        let host_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        check_authority(host_port).map_err(syntax)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        if matches!(scheme, Scheme::Unix | Scheme::Unixs) {
            let host = format!("{authority}{path}");
            return Ok(Url { text: text.to_owned(), scheme, host, port: String::new() });
        }
        let Some((host, port)) = split_host_port(host_port) else {
            return Err(UrlError::Address(text.to_owned()));
        };
        if !path.is_empty() {
            return Err(UrlError::Path(text.to_owned()));
        }
        Ok(Url { text: text.to_owned(), scheme, host: host.to_owned(), port: port.to_owned() })
    }
}

/// The scheme and what follows its colon; no scheme is an empty one.
fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(text.len());
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphabetic());
    if text.starts_with(':') {
        return Err("missing protocol scheme");
    }
    if begins_well && text[end..].starts_with(':') {
        return Ok((&text[..end], &text[end + 1..]));
    }
    let segment = text.split('/').next().unwrap_or_default();
    if segment.contains(':') {
        return Err("first path segment in URL cannot contain colon");
    }
    Ok(("", text))
}

/// What is wrong with the form of `host[:port]`, whatever the scheme.
fn check_authority(authority: &str) -> Result<(), String> {
    let after_host = if authority.starts_with('[') {
        let end = authority.rfind(']').ok_or("missing ']' in host")?;
        &authority[end + 1..]
    } else {
        if let Some(odd) = authority.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
            return Err(format!("invalid character {:?} in host name", odd.to_string()));
        }
        authority.rfind(':').map_or("", |at| &authority[at..])
    };
    let port = after_host.strip_prefix(':').unwrap_or(after_host);
    let well_formed = after_host.is_empty() || after_host.starts_with(':');
    if well_formed && port.chars().all(|c| c.is_ascii_digit()) {
        Ok(())
    } else {
        Err(format!("invalid port {after_host:?} after host"))
    }
}

fn split_host_port(authority: &str) -> Option<(&str, &str)> {
    let (host, port) = authority.rsplit_once(':')?;
    if port.is_empty() {
        return None;
    }
    match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(host)) => Some((host, port)),
        Some(None) => None,
        // An IPv6 address without brackets has too many colons to be split.
        None => (!host.contains(':')).then_some((host, port)),
    }
}

/// Parses a comma list, sorted by text as members are made of it.
pub fn parse_list(text: &str) -> Result<Vec<Url>, UrlError> {
    let mut urls = text.split(',').map(Url::from_str).collect::<Result<Vec<_>, _>>()?;
    urls.sort_by(|a, b| a.text.cmp(&b.text));
    Ok(urls)
}

/// `a,b,c`, as flags and messages write a list.
pub fn join(urls: &[Url]) -> String {
    let texts: Vec<&str> = urls.iter().map(Url::as_str).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `want`: the list joined again, or the error's text.
    fn check(text: &str, want: Result<&str, &str>) {
        let got = parse_list(text).map(|urls| join(&urls)).map_err(|error| error.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{text:?}");
    }

    #[test]
    fn lists_are_trimmed_and_sorted() {
        check("http://127.0.0.1:2379", Ok("http://127.0.0.1:2379"));
        check("http://b:2, https://a:1", Ok("http://b:2,https://a:1"));
        check("http://[::1]:2380", Ok("http://[::1]:2380"));
        check("http://:2379", Ok("http://:2379"));
        check("http://127.0.0.1:99999", Ok("http://127.0.0.1:99999"));
        check("unix:///tmp/c.sock", Ok("unix:///tmp/c.sock"));
    }

    #[test]
    fn mistakes_have_the_texts_of_etcd() {
        check("foo", Err("URL scheme must be http, https, unix, or unixs: foo"));
        check("", Err("URL scheme must be http, https, unix, or unixs: "));
        check("localhost:2379", Err("URL scheme must be http, https, unix, or unixs: localhost:2379"));
        check("http://a:1, ftp://x:1", Err("URL scheme must be http, https, unix, or unixs: ftp://x:1"));
        check("http://127.0.0.1", Err("URL address does not have the form \"host:port\": http://127.0.0.1"));
        check(
            "http://127.0.0.1:",
            Err("URL address does not have the form \"host:port\": http://127.0.0.1:"),
        );
        check("http://::1:1", Err("URL address does not have the form \"host:port\": http://::1:1"));
        check("http://127.0.0.1:1/x", Err("URL must not contain a path: http://127.0.0.1:1/x"));
        check("http://127.0.0.1:1/", Err("URL must not contain a path: http://127.0.0.1:1/"));
        check("http://[::1", Err("parse \"http://[::1\": missing ']' in host"));
        check("http://a:b", Err("parse \"http://a:b\": invalid port \":b\" after host"));
        check(":foo", Err("parse \":foo\": missing protocol scheme"));
        check(
            "127.0.0.1:2379",
            Err("parse \"127.0.0.1:2379\": first path segment in URL cannot contain colon"),
        );
    }

    #[test]
    fn spellings_of_one_address_agree() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        assert_eq!(url("http://[::1]:1").meaning(), url("http://[0:0:0:0:0:0:0:1]:1").meaning());
        assert_eq!(url("http://N1:1").meaning(), url("http://n1:1").meaning());
        assert_ne!(url("http://[::1]:1").meaning(), url("http://[::1]:2").meaning());
        assert_ne!(url("http://[::1]:1").meaning(), url("https://[::1]:1").meaning());
        assert_eq!(url("http://[::1]:7").bind_address().unwrap().to_string(), "[::1]:7");
        assert_eq!(url("http://[::1]:7").authority(), "[::1]:7");
        assert_eq!(url("http://localhost:7").bind_address().unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(url("http://n1:7").bind_address(), None);
    }
}
