//! The Auth service. Authentication cannot be turned on in this release, so
//! the two calls that clients make on their own say that it is off.

use super::{errors::Error, service::service};
use quorate_proto::etcdserverpb as pb;
use tonic::{Request, Response, Status};

/// The auth revision of a store in which no user, role or permission was ever changed (A6).
const AUTH_REVISION_FIRST: u64 = 1;

service! {
    impl pb::auth_server::Auth as "Auth" {
        async fn auth_status(
            &self,
            _: Request<pb::AuthStatusRequest>,
        ) -> Result<Response<pb::AuthStatusResponse>, Status> {
            self.read_index().await?;
            Ok(Response::new(pb::AuthStatusResponse {
                header: self.header(self.backend.revisions().0),
                enabled: false,
                auth_revision: AUTH_REVISION_FIRST,
            }))
        }

        async fn authenticate(
            &self,
            _: Request<pb::AuthenticateRequest>,
        ) -> Result<Response<pb::AuthenticateResponse>, Status> {
            Err(Error::AuthNotEnabled.status())
        }
    }
    unserved {
        auth_enable: pb::AuthEnableRequest => pb::AuthEnableResponse, "AuthEnable";
        auth_disable: pb::AuthDisableRequest => pb::AuthDisableResponse, "AuthDisable";
        user_add: pb::AuthUserAddRequest => pb::AuthUserAddResponse, "UserAdd";
        user_get: pb::AuthUserGetRequest => pb::AuthUserGetResponse, "UserGet";
        user_list: pb::AuthUserListRequest => pb::AuthUserListResponse, "UserList";
        user_delete: pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse, "UserDelete";
        user_change_password: pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse,
            "UserChangePassword";
        user_grant_role: pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse, "UserGrantRole";
        user_revoke_role: pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse, "UserRevokeRole";
        role_add: pb::AuthRoleAddRequest => pb::AuthRoleAddResponse, "RoleAdd";
        role_get: pb::AuthRoleGetRequest => pb::AuthRoleGetResponse, "RoleGet";
        role_list: pb::AuthRoleListRequest => pb::AuthRoleListResponse, "RoleList";
        role_delete: pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse, "RoleDelete";
        role_grant_permission: pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse,
            "RoleGrantPermission";
        role_revoke_permission: pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse,
            "RoleRevokePermission";
    }
}
