//! What a MachineClass's Secret says of credentials. The keys are those of machine-controller-manager's AWS provider; `externalID`
//! and `credentialSource` are ours.

use std::{fmt, path::PathBuf};

use aws_credential_types::Credentials;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result, SecretData};

const KEY_IDS: [&str; 2] = ["providerAccessKeyId", "accessKeyID"];
const SECRET_KEYS: [&str; 2] = ["providerSecretAccessKey", "secretAccessKey"];
const TOKEN_FILE: &str = "workloadIdentityTokenFile";
const ROLE: &str = "roleARN";
const EXTERNAL_ID: &str = "externalID";
const CREDENTIAL_SOURCE: &str = "credentialSource";
/// The only value of `credentialSource`: AWS's own word for the role of an instance in its configuration files.
const INSTANCE: &str = "Ec2InstanceMetadata";

/// The longest ARN of a role, in bytes.
const LONGEST_ARN: usize = 2_048;
/// The longest external id, in bytes.
const LONGEST_EXTERNAL_ID: usize = 1_224;

/// An access key. Neither part is printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct AccessKey {
    id: String,
    secret: String,
}

impl AccessKey {
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials::new(&self.id, &self.secret, None, None, "secret")
    }
}

/// Where credentials come from. The value is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// They are in the Secret.
    Key(AccessKey),
    /// They are temporary.
    Issuer(Issuer),
}

/// Who issues temporary credentials. The value is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Issuer {
    WebIdentity(WebIdentity),
    Role(Role),
    Instance,
}

/// A role that is assumed with a token of another identity provider, such as Kubernetes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct WebIdentity {
    pub role: String,
    pub token_file: PathBuf,
}

/// A role that is assumed with other credentials of AWS.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Role {
    pub arn: String,
    pub external_id: Option<String>,
    pub caller: RoleCaller,
}

/// Who assumes a role.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum RoleCaller {
    Key(AccessKey),
    Instance,
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Key(_) => "Source(access key)",
            Self::Issuer(Issuer::WebIdentity(_)) => "Source(web identity)",
            Self::Issuer(Issuer::Role(_)) => "Source(assumed role)",
            Self::Issuer(Issuer::Instance) => "Source(instance)",
        })
    }
}

impl Source {
    /// A token file wins over an access key, as with machine-controller-manager's provider: a class may have two Secrets.
    ///
    /// # Errors
    /// `InvalidArgument` names the key that the Secret lacks, or that cannot be.
    pub(crate) fn of(secret: &SecretData) -> Result<Self> {
        let is_instance = asks_for_instance(secret)?;
        if secret.get(TOKEN_FILE).is_some() {
            if is_instance {
                return Err(invalid(&format!("must not have both {TOKEN_FILE} and {CREDENTIAL_SOURCE}")));
            }
            return web_identity(secret).map(|identity| Self::Issuer(Issuer::WebIdentity(identity)));
        }
        let key = if is_instance { None } else { Some(access_key(secret)?) };
        let role = role(secret)?;
        Ok(match (role, key) {
            (None, Some(key)) => Self::Key(key),
            (None, None) => Self::Issuer(Issuer::Instance),
            (Some((arn, external_id)), key) => {
                let caller = key.map_or(RoleCaller::Instance, RoleCaller::Key);
                Self::Issuer(Issuer::Role(Role { arn, external_id, caller }))
            }
        })
    }
}

/// Whether the role of the instance is to be used. It is never a fallback: the Secret must have no access key then.
fn asks_for_instance(secret: &SecretData) -> Result<bool> {
    let Some(source) = secret.get(CREDENTIAL_SOURCE) else { return Ok(false) };
    if text(source) != Some(INSTANCE) {
        return Err(invalid(&format!("has a {CREDENTIAL_SOURCE} that is not {INSTANCE}, the only one there is")));
    }
    match KEY_IDS.iter().chain(&SECRET_KEYS).find(|key| secret.get(key).is_some()) {
        Some(key) => Err(invalid(&format!("must not have both {key} and {CREDENTIAL_SOURCE}"))),
        None => Ok(true),
    }
}

fn web_identity(secret: &SecretData) -> Result<WebIdentity> {
    // A value that is no path may be the token.
    let path = secret.get(TOKEN_FILE).and_then(text).map(PathBuf::from).filter(|path| path.is_absolute());
    let token_file =
        path.ok_or_else(|| invalid(&format!("must have the absolute path of a file as {TOKEN_FILE}, in ASCII")))?;
    match role(secret)? {
        Some((role, None)) => Ok(WebIdentity { role, token_file }),
        Some((_, Some(_))) => Err(invalid(&format!("must not have both {TOKEN_FILE} and {EXTERNAL_ID}"))),
        None => Err(invalid(&format!("has {TOKEN_FILE} and must have {ROLE}, the role to assume with that token"))),
    }
}

/// A role's ARN and the external id to assume it with.
fn role(secret: &SecretData) -> Result<Option<(String, Option<String>)>> {
    let arn = secret.get(ROLE).map(|arn| text(arn).filter(|arn| is_role(arn)));
    let external_id = secret.get(EXTERNAL_ID).map(|id| text(id).filter(|id| is_external_id(id)));
    match (arn, external_id) {
        (None, None) => Ok(None),
        (Some(None), _) => {
            Err(invalid(&format!("has a {ROLE} that is none; it must be like arn:aws:iam::123456789012:role/machines")))
        }
        (_, Some(None)) => Err(invalid(&format!(
            "has an {EXTERNAL_ID} that is none; it must have 2 to {LONGEST_EXTERNAL_ID} letters, digits, or of _+=,.@:/-"
        ))),
        (None, Some(Some(_))) => Err(invalid(&format!("has {EXTERNAL_ID} and must have {ROLE}, the role to assume"))),
        (Some(Some(arn)), id) => Ok(Some((arn.to_owned(), id.flatten().map(str::to_owned)))),
    }
}

fn is_role(arn: &str) -> bool {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    arn.len() <= LONGEST_ARN && matches!(parts[..], ["arn", _, "iam", "", _, role] if role.starts_with("role/"))
}

fn is_external_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@:/-".contains(&byte);
    (2..=LONGEST_EXTERNAL_ID).contains(&id.len()) && id.bytes().all(is_allowed)
}

fn access_key(secret: &SecretData) -> Result<AccessKey> {
    Ok(AccessKey { id: first(secret, KEY_IDS)?, secret: first(secret, SECRET_KEYS)? })
}

fn first(secret: &SecretData, keys: [&str; 2]) -> Result<String> {
    let present = keys.iter().find_map(|key| secret.get(key)).and_then(text);
    present.map(str::to_owned).ok_or_else(|| {
        let others = format!("{TOKEN_FILE} with {ROLE}, or {CREDENTIAL_SOURCE}: {INSTANCE}");
        invalid(&format!("must have {} or {}, in ASCII; or, in place of an access key, {others}", keys[0], keys[1]))
    })
}

/// A value without the line's end that an editor may have left.
fn text(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?.trim();
    Some(text).filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()))
}

fn invalid(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("failed to use the Secret of the MachineClass: it {what}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use k8s_openapi::{ByteString, api::core::v1::Secret};

    use super::*;

    const ARN: &str = "arn:aws:iam::123456789012:role/machines";

    pub(crate) fn secret(entries: &[(&str, &str)]) -> SecretData {
        let data: BTreeMap<_, _> =
            entries.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
        SecretData::of(vec![Arc::new(Secret { data: Some(data), ..Secret::default() })])
    }

    fn key() -> AccessKey {
        AccessKey { id: "AKIA".to_owned(), secret: "hunter2".to_owned() }
    }

    #[test]
    fn both_names_of_the_keys_are_known() {
        for [id, secret_key] in [["providerAccessKeyId", "providerSecretAccessKey"], ["accessKeyID", "secretAccessKey"]]
        {
            let source = Source::of(&secret(&[(id, "AKIA\n"), (secret_key, " hunter2")]));
            assert!(source == Ok(Source::Key(key())), "{source:?}");
        }
    }

    #[test]
    fn a_token_file_wins_over_an_access_key() {
        let entries = [
            ("workloadIdentityTokenFile", "/var/run/token\n"),
            ("roleARN", ARN),
            ("accessKeyID", "AKIA"),
            ("secretAccessKey", "hunter2"),
        ];
        let expected = WebIdentity { role: ARN.to_owned(), token_file: "/var/run/token".into() };
        for entries in [&entries[..2], &entries[..]] {
            let source = Source::of(&secret(entries));
            assert!(source == Ok(Source::Issuer(Issuer::WebIdentity(expected.clone()))), "{source:?}");
        }
    }

    #[test]
    fn a_role_is_assumed_with_an_access_key_or_by_the_instance() {
        let role = |external_id: Option<&str>, caller| {
            let external_id = external_id.map(str::to_owned);
            Ok(Source::Issuer(Issuer::Role(Role { arn: ARN.to_owned(), external_id, caller })))
        };
        let keys = [("accessKeyID", "AKIA"), ("secretAccessKey", "hunter2"), ("roleARN", ARN), ("externalID", "x:1")];
        assert!(Source::of(&secret(&keys[..3])) == role(None, RoleCaller::Key(key())));
        assert!(Source::of(&secret(&keys)) == role(Some("x:1"), RoleCaller::Key(key())));
        let instance = [("credentialSource", "Ec2InstanceMetadata"), ("roleARN", ARN)];
        assert!(Source::of(&secret(&instance)) == role(None, RoleCaller::Instance));
        assert!(Source::of(&secret(&instance[..1])) == Ok(Source::Issuer(Issuer::Instance)));
    }

    #[test]
    fn a_secret_that_lacks_a_key_is_refused_without_its_values() {
        let arn = ("roleARN", ARN);
        let file = ("workloadIdentityTokenFile", "/hunter2");
        let (id, secret_key) = (("accessKeyID", "AKIA"), ("secretAccessKey", "hunter2"));
        let instance = ("credentialSource", "Ec2InstanceMetadata");
        for (entries, named) in [
            (vec![], "providerAccessKeyId"),
            (vec![], "credentialSource: Ec2InstanceMetadata"),
            (vec![id], "secretAccessKey"),
            (vec![secret_key], "accessKeyID"),
            (vec![("accessKeyID", " "), secret_key], "accessKeyID"),
            (vec![id, ("secretAccessKey", "hunter2 hunter2")], "secretAccessKey"),
            (vec![arn], "providerAccessKeyId"),
            (vec![file], "roleARN"),
            (vec![file, ("roleARN", "hunter2")], "roleARN"),
            (vec![("workloadIdentityTokenFile", ""), arn], "workloadIdentityTokenFile"),
            (vec![("workloadIdentityTokenFile", "hunter2"), arn], "workloadIdentityTokenFile"),
            (vec![file, arn, ("externalID", "hunter2")], "externalID"),
            (vec![file, arn, instance], "credentialSource"),
            (vec![id, secret_key, ("externalID", "hunter2")], "roleARN"),
            (vec![id, secret_key, arn, ("externalID", "hunter2 hunter2")], "externalID"),
            (vec![id, secret_key, ("roleARN", "arn:aws:iam::1:user/hunter2")], "roleARN"),
            (vec![("credentialSource", "hunter2")], "Ec2InstanceMetadata"),
            (vec![instance, secret_key], "secretAccessKey"),
        ] {
            let error = Source::of(&secret(&entries)).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(named), "{error}");
            assert!(!error.message.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_source_is_printed_by_its_kind_alone() {
        let keys = secret(&[("accessKeyID", "AKIA"), ("secretAccessKey", "hunter2"), ("roleARN", ARN)]);
        assert_eq!(format!("{:?}", Source::of(&keys)), "Ok(Source(assumed role))");
    }
}
