//! The file with a token of another identity provider. Its owner replaces it before the token ends, so it is read each time.

use std::{io, path::Path};

use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use tokio::{fs::File, io::AsyncReadExt};

/// The longest token that STS takes, in bytes.
const LONGEST_TOKEN: usize = 20_000;
/// How much of a file is read, in bytes: a token and the white space around it.
const MOST: u64 = 1 << 15;

/// The token in a file.
///
/// # Errors
/// `Unauthenticated`, with neither the path nor the content: a Secret may have the token in place of the path.
pub(super) async fn read(path: &Path) -> Result<String> {
    let content = content(path).await.map_err(|error| unusable(&format!("cannot be read: {}", error.kind())))?;
    let token = std::str::from_utf8(&content).unwrap_or_default().trim();
    // Other files, which a Secret could name to have them sent, have lines or are no text.
    let is_token = (4..=LONGEST_TOKEN).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then(|| token.to_owned()).ok_or_else(|| unusable("has no token in it, which is one word of ASCII"))
}

async fn content(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe or a device could block for ever.
    if !tokio::fs::metadata(path).await?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = vec![];
    File::open(path).await?.take(MOST).read_to_end(&mut content).await?;
    Ok(content)
}

fn unusable(what: &str) -> DriverError {
    let message = format!("the file that workloadIdentityTokenFile of the Secret names, on the driver's side, {what}");
    DriverError::new(Code::Unauthenticated, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_one_word_in_a_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (content, is_token) in [
            (" a.b.c\n".to_owned(), true),
            ("x".repeat(LONGEST_TOKEN), true),
            ("x".repeat(LONGEST_TOKEN + 1), false),
            ("x".repeat(1 << 20), false),
            (String::new(), false),
            ("hunter2 hunter2".to_owned(), false),
            ("hunter2\nhunter2\n".to_owned(), false),
            ("hunter2\u{e9}".to_owned(), false),
        ] {
            std::fs::write(&path, &content).unwrap();
            match read(&path).await {
                Ok(token) => assert!(is_token && token == content.trim()),
                Err(error) => {
                    assert!(!is_token && error.code == Code::Unauthenticated, "{error}");
                    assert!(!error.message.contains("hunter2"), "{error}");
                }
            }
        }
        for path in [folder.path(), Path::new("/dev/zero"), &folder.path().join("hunter2")] {
            let error = read(path).await.unwrap_err();
            assert!(error.code == Code::Unauthenticated && !error.message.contains("hunter2"), "{error}");
        }
    }
}
