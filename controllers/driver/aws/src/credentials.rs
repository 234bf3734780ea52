//! The credentials in a MachineClass's Secret, by the keys of machine-controller-manager's AWS provider.

use std::fmt;

use aws_credential_types::Credentials;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result, SecretData};

const KEY_IDS: [&str; 2] = ["providerAccessKeyId", "accessKeyID"];
const SECRET_KEYS: [&str; 2] = ["providerSecretAccessKey", "secretAccessKey"];
const TOKEN_FILE: &str = "workloadIdentityTokenFile";

/// An access key. Neither part is printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccessKey {
    id: String,
    secret: String,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey")
    }
}

impl AccessKey {
    /// # Errors
    /// `InvalidArgument` names the key that the Secret lacks.
    pub(crate) fn of(secret: &SecretData) -> Result<Self> {
        if secret.get(TOKEN_FILE).is_some() {
            let what = "has workloadIdentityTokenFile, which this driver does not support; it must have an access key";
            return Err(invalid(what));
        }
        Ok(Self { id: first(secret, KEY_IDS)?, secret: first(secret, SECRET_KEYS)? })
    }

    pub(crate) fn credentials(&self) -> Credentials {
        Credentials::new(&self.id, &self.secret, None, None, "secret")
    }
}

fn first(secret: &SecretData, keys: [&str; 2]) -> Result<String> {
    let present = keys.iter().find_map(|key| secret.get(key)).unwrap_or_default();
    // An editor may have left a line's end.
    let text = std::str::from_utf8(present).unwrap_or_default().trim();
    let is_key = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_key.then(|| text.to_owned()).ok_or_else(|| invalid(&format!("must have {} or {}, in ASCII", keys[0], keys[1])))
}

fn invalid(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("failed to use the Secret of the MachineClass: it {what}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use k8s_openapi::{ByteString, api::core::v1::Secret};

    use super::*;

    pub(crate) fn secret(entries: &[(&str, &str)]) -> SecretData {
        let data: BTreeMap<_, _> =
            entries.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
        SecretData::of(vec![Arc::new(Secret { data: Some(data), ..Secret::default() })])
    }

    #[test]
    fn both_names_of_the_keys_are_known() {
        let key = AccessKey { id: "AKIA".to_owned(), secret: "hunter2".to_owned() };
        for [id, secret_key] in [["providerAccessKeyId", "providerSecretAccessKey"], ["accessKeyID", "secretAccessKey"]]
        {
            assert_eq!(AccessKey::of(&secret(&[(id, "AKIA\n"), (secret_key, " hunter2")])), Ok(key.clone()));
        }
    }

    #[test]
    fn a_secret_that_lacks_a_key_is_refused_without_its_values() {
        for (entries, named) in [
            (vec![], "providerAccessKeyId"),
            (vec![("accessKeyID", "AKIA")], "secretAccessKey"),
            (vec![("accessKeyID", " "), ("secretAccessKey", "hunter2")], "accessKeyID"),
            (vec![("accessKeyID", "AKIA"), ("secretAccessKey", "hunter2 hunter2")], "secretAccessKey"),
            (vec![("workloadIdentityTokenFile", "hunter2")], "workloadIdentityTokenFile"),
        ] {
            let error = AccessKey::of(&secret(&entries)).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(named), "{error}");
            assert!(!error.message.contains("hunter2"), "{error}");
        }
    }
}
