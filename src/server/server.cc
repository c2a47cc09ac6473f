#include "tandem/server/server.h"
