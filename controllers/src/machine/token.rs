//! Bootstrap tokens, with which the kubelet of a new VM joins the target cluster.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use nodewright_api::operations;
use nodewright_driver::Class;
use nodewright_runtime::{
    request::{Call, Connection, RequestError},
    without_managed_fields,
};
use serde_json::json;

use super::calls::Request;
use crate::shared::class_secrets::USER_DATA;

/// The letters of tokens: Kubernetes requires `[a-z0-9]`.
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets";
/// The field manager of the end of a token that was moved.
const MANAGER: &str = "nodewright-machine";

pub(super) fn placeholders() -> [String; 2] {
    let plain = operations::BOOTSTRAP_TOKEN_PLACEHOLDER;
    [plain.to_owned(), url_encoded(plain)]
}

/// A placeholder as it is written in the data URLs of Ignition.
pub(super) fn url_encoded(placeholder: &str) -> String {
    placeholder.replace('<', "%3C").replace('>', "%3E")
}

pub(super) fn is_used(class: &Class) -> bool {
    let Some(text) = class.secret.get(USER_DATA) else { return false };
    placeholders().iter().any(|placeholder| text.windows(placeholder.len()).any(|part| part == placeholder.as_bytes()))
}

/// The id of a Machine's token, made from its UID: the same after a restart. (machine-controller-manager makes it from three
/// letters of the name, so that two of 165 Machines probably share one, and the first to join deletes the token of the other.)
fn id(uid: &str) -> String {
    let mut hash = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash ^= hash >> 32;
    (0..6)
        .map(|_| {
            let letter = usize::try_from(hash % 36).unwrap_or_default();
            hash /= 36;
            char::from(ALPHABET[letter])
        })
        .collect()
}

fn secret() -> Result<String, getrandom::Error> {
    let mut letters = String::with_capacity(16);
    let mut bytes = [0_u8; 32];
    while letters.len() < 16 {
        getrandom::fill(&mut bytes)?;
        // 252 is the largest multiple of 36 in a byte: larger values would favour some letters.
        let fair = bytes.iter().filter(|byte| **byte < 252).map(|byte| char::from(ALPHABET[usize::from(byte % 36)]));
        letters.extend(fair.take(16 - letters.len()));
    }
    Ok(letters)
}

pub(super) async fn ensure(
    target: &Connection,
    request: &Request,
    groups: &str,
    now: Timestamp,
) -> Result<String, String> {
    let name = format!("bootstrap-token-{}", id(&request.machine.uid));
    let made = make(target, request, groups, now).await?;
    let found = match made {
        Some(token) => return Ok(token),
        None => read(target, &name).await?,
    };
    let token = found.text("token-id").zip(found.text("token-secret"));
    let Some((id, secret)) = token else {
        return Err(format!("Secret kube-system/{name} is no bootstrap token: delete it"));
    };
    let expires = found.text("expiration").and_then(|text| text.parse::<Timestamp>().ok());
    let Some(expires) = expires.filter(|expires| *expires < after(now, request.token_lifetime / 2)) else {
        return Ok(format!("{id}.{secret}"));
    };
    // The secret stays, because a VM may have it already, and gets its whole lifetime again. The role of
    // machine-controller-manager does not permit that: then the token serves to its end, and the next call makes a new one.
    match renew(target, &found.0, after(now, request.token_lifetime)).await {
        Ok(()) => Ok(format!("{id}.{secret}")),
        Err(_) if expires > now => Ok(format!("{id}.{secret}")),
        Err(_) => {
            drop(target, &request.machine.uid).await?;
            let made = make(target, request, groups, now).await?;
            made.ok_or_else(|| format!("somebody else has made Secret kube-system/{name}"))
        }
    }
}

/// Makes a token; `None` if there is one.
async fn make(target: &Connection, request: &Request, groups: &str, now: Timestamp) -> Result<Option<String>, String> {
    let (machine, id) = (&request.machine.name, id(&request.machine.uid));
    let secret = secret().map_err(|error| format!("failed to draw a bootstrap token: {error}"))?;
    let expiry = after(now, request.token_lifetime).to_string();
    let name = format!("bootstrap-token-{id}");
    let mut data = json!({
        "token-id": id, "token-secret": secret, "expiration": expiry,
        "description": format!("Bootstrap token for machine {machine}"),
        "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
    });
    if !groups.is_empty() {
        data["auth-extra-groups"] = groups.into();
    }
    let body = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": name, "namespace": "kube-system"}, "stringData": data});
    match target.send(Call::with(Method::POST, TOKENS, "application/json", &body)).await {
        Ok(_) => Ok(Some(format!("{id}.{secret}"))),
        Err(error) if error.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(failed("make", &error)),
    }
}

/// A token that was made before.
struct Existing(Secret);

impl Existing {
    fn text(&self, key: &str) -> Option<String> {
        let value: Option<&ByteString> = self.0.data.as_ref().and_then(|data| data.get(key));
        value.and_then(|value| String::from_utf8(value.0.clone()).ok())
    }
}

async fn read(target: &Connection, name: &str) -> Result<Existing, String> {
    let answer = target.send(Call::get(format!("{TOKENS}/{name}"))).await.map_err(|error| failed("read", &error))?;
    let found = without_managed_fields::from_slice(answer.body());
    found.map(Existing).map_err(|_| "the bootstrap token cannot be decoded".to_owned())
}

/// Moves the end of a token. Kubernetes may delete it meanwhile: because of the UID none is made from the end alone.
async fn renew(target: &Connection, token: &Secret, expires: Timestamp) -> Result<(), String> {
    let name = token.metadata.name.as_deref().unwrap_or_default();
    let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "uid": token.metadata.uid},
        "data": {"expiration": ByteString(expires.to_string().into_bytes())}});
    let path = format!("{TOKENS}/{name}?fieldManager={MANAGER}&force=true");
    let call = Call::with(Method::PATCH, path, "application/apply-patch+yaml", &body);
    target.send(call).await.map(|_| ()).map_err(|error| failed("renew", &error))
}

fn after(now: Timestamp, lifetime: Duration) -> Timestamp {
    now.checked_add(lifetime).unwrap_or(Timestamp::MAX)
}

pub(super) async fn drop(target: &Connection, uid: &str) -> Result<(), String> {
    let path = format!("{TOKENS}/bootstrap-token-{}", id(uid));
    match target.send(Call::with(Method::DELETE, path, "application/json", &json!({}))).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(failed("delete", &error)),
    }
}

fn failed(verb: &str, error: &RequestError) -> String {
    format!("failed to {verb} the machine's bootstrap token in namespace kube-system of the target cluster: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcm_defect_7_ids_are_well_formed_and_differ() {
        let ids: std::collections::HashSet<_> =
            (0..5_000).map(|n| id(&format!("5f0c7a3e-0000-4000-8000-{n:012x}"))).collect();
        assert_eq!(ids.len(), 5_000);
        let shortest = ["", "a"].map(id);
        let is_well_formed = |id: &String| id.len() == 6 && id.bytes().all(|byte| ALPHABET.contains(&byte));
        assert!(ids.iter().chain(&shortest).all(is_well_formed));
    }

    #[test]
    fn secrets_are_well_formed() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert!(one != other && one.len() == 16 && one.bytes().all(|byte| ALPHABET.contains(&byte)));
    }
}
