/* Threads transfer between accounts in a Berkeley DB environment of their own, in memory.
 *
 *     berkeley_db THREADS TRANSACTIONS
 *
 * Each transaction reads two records of a B-tree and writes both. One that would wait forever for
 * another is undone and made again. Prints the number of transactions and the sum of all accounts,
 * which no transfer changes. */
#include <db.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACCOUNTS = 10000, MEMORY = 64 << 20 };

static DB_ENV *environment;
static DB *accounts;
static long transactions;

static void must(int error, const char *what) {
    if (error == 0) return;
    fprintf(stderr, "%s: %s\n", what, db_strerror(error));
    exit(1);
}

static int change(DB_TXN *within, int account, long by) {
    long held = 0;
    DBT key = {.data = &account, .size = sizeof account};
    DBT value = {.data = &held, .ulen = sizeof held, .flags = DB_DBT_USERMEM};
    int error = accounts->get(accounts, within, &key, &value, DB_RMW);
    if (error != 0) return error;
    held += by;
    DBT changed = {.data = &held, .size = sizeof held};
    return accounts->put(accounts, within, &key, &changed, 0);
}

static void *transfer(void *thread) {
    unsigned seed = (unsigned)(size_t)thread + 1;
    for (long done = 0; done < transactions;) {
        DB_TXN *within;
        must(environment->txn_begin(environment, NULL, &within, DB_TXN_NOSYNC), "begin");
        int error = change(within, rand_r(&seed) % ACCOUNTS, -1);
        if (error == 0) error = change(within, rand_r(&seed) % ACCOUNTS, 1);
        if (error == DB_LOCK_DEADLOCK) {
            must(within->abort(within), "abort");
            continue;
        }
        must(error, "transfer");
        must(within->commit(within, DB_TXN_NOSYNC), "commit");
        done++;
    }
    return NULL;
}

int main(int arguments, char **argument) {
    int threads = arguments == 3 ? atoi(argument[1]) : 0;
    transactions = arguments == 3 ? atol(argument[2]) : 0;
    if (threads < 1 || threads > 64 || transactions < 1) {
        fprintf(stderr, "expected THREADS (1 to 64) TRANSACTIONS, of each thread\n");
        return 2;
    }
    must(db_env_create(&environment, 0), "environment");
    must(environment->log_set_config(environment, DB_LOG_IN_MEMORY, 1), "log in memory");
    must(environment->set_lg_bsize(environment, MEMORY), "log buffer");
    must(environment->set_cachesize(environment, 0, MEMORY, 1), "cache");
    must(environment->set_lk_detect(environment, DB_LOCK_DEFAULT), "deadlocks");
    must(environment->open(environment, NULL,
                           DB_CREATE | DB_PRIVATE | DB_THREAD | DB_INIT_LOCK | DB_INIT_LOG |
                               DB_INIT_MPOOL | DB_INIT_TXN,
                           0),
         "open the environment");
    must(db_create(&accounts, environment, 0), "database");
    must(accounts->open(accounts, NULL, NULL, "accounts", DB_BTREE,
                        DB_CREATE | DB_THREAD | DB_AUTO_COMMIT, 0),
         "open the database");
    for (int account = 0; account < ACCOUNTS; account++) {
        long held = 1000;
        DBT key = {.data = &account, .size = sizeof account};
        DBT value = {.data = &held, .size = sizeof held};
        must(accounts->put(accounts, NULL, &key, &value, 0), "put");
    }
    pthread_t running[64];
    for (size_t thread = 0; thread < (size_t)threads; thread++)
        must(pthread_create(&running[thread], NULL, transfer, (void *)thread), "thread");
    for (int thread = 0; thread < threads; thread++) pthread_join(running[thread], NULL);
    long sum = 0;
    for (int account = 0; account < ACCOUNTS; account++) {
        long held = 0;
        DBT key = {.data = &account, .size = sizeof account};
        DBT value = {.data = &held, .ulen = sizeof held, .flags = DB_DBT_USERMEM};
        must(accounts->get(accounts, NULL, &key, &value, 0), "get");
        sum += held;
    }
    printf("%ld transactions, %ld in all accounts\n", threads * transactions, sum);
    must(accounts->close(accounts, 0), "close the database");
    must(environment->close(environment, 0), "close the environment");
    return 0;
}
