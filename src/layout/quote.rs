//! Bytes as Go's `%q` prints them, and as `\xHH`.

use std::fmt::Write;

/// A double-quoted Go string literal.
pub fn go(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    let mut rest = bytes;
    while !rest.is_empty() {
        let (valid, bad) = match std::str::from_utf8(rest) {
            Ok(text) => (text, 0),
            Err(error) => {
                let text = std::str::from_utf8(&rest[..error.valid_up_to()]).expect("checked up to here");
                (text, 1)
            }
        };
        for c in valid.chars() {
            push(&mut out, c);
        }
        let invalid = &rest[valid.len()..valid.len() + bad];
        for byte in invalid {
            write!(out, "\\x{byte:02x}").expect("a String takes everything");
        }
        rest = &rest[valid.len() + bad..];
    }
    out.push('"');
    out
}

fn push(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        c if (c as u32) < 0x20 || c as u32 == 0x7f => {
            write!(out, "\\x{:02x}", c as u32).expect("a String takes everything");
        }
        c if c.is_control() || (c.is_whitespace() && c != ' ') => {
            write!(out, "\\u{:04x}", c as u32).expect("a String takes everything");
        }
        c => out.push(c),
    }
}

/// Every byte as `\xHH`.
pub fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_quoted_as_go_quotes_them() {
        let check = |bytes: &[u8], quoted: &str| assert_eq!(go(bytes), quoted);
        check(b"plain", "\"plain\"");
        check(b"a\"b\\c\n\t", r#""a\"b\\c\n\t""#);
        check(&[0, 0x7f, 0xff, b'x'], r#""\x00\x7f\xffx""#);
        check("é".as_bytes(), "\"é\"");
        check(&[0xc3, 0x28], r#""\xc3(""#);
        assert_eq!(hex(&[0, 0xab]), b"\\x00\\xab");
    }
}
